"""The jobs that people come with, by the documents' own commands, on real texts.

Each ends with a truth that is not this package's: sentence-transformers' evaluators, ONNX Runtime,
SimCSE's scripts, formulas by hand.
"""

import csv
import gettext
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import reset_accelerator
from datasets import Dataset
from scipy.stats import bootstrap, spearmanr, t
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from sentence_transformers.models import Dense
from sklearn.metrics import ndcg_score
from test_documents import (
    BLOCKS,
    OWN_CLASS,
    command_of,
    run_snippet,
    write_inputs,
)
from torch.nn.functional import cross_entropy, normalize

import dystress_text
from dystress_text import __main__ as dystress
from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.finetuning.arguments import parse
from dystress_text.io.paths import model_path

SHORT = ("--train_batch_size=16", "--mixed_precision=no")
ENCODER = model_path("bert-mini-wiki")


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    """The working directory, with the files that the commands name."""
    monkeypatch.chdir(tmp_path)
    write_inputs()
    (tmp_path / "parts").mkdir()


def read_lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def relevant_in(collection, documents):
    """The relevant documents of each query that has some among these."""
    relevant = {}
    for line in (collection / "qrels.tsv").read_text().splitlines()[1:]:
        query, document, _ = line.split("\t")
        if document in documents:
            relevant.setdefault(query, set()).add(document)
    return relevant


@pytest.fixture
def cisi(shared):
    """Titles and beginnings of 500 documents, and an evaluator of the search in them."""
    place = shared / "data" / "retrieval" / "cisi"
    documents = read_lines(place / "corpus.jsonl")
    queries = read_lines(place / "queries.jsonl")
    rows = {row["_id"]: (row["title"], row["text"][:300]) for row in documents[:500]}
    relevant = relevant_in(place, rows)
    evaluator = InformationRetrievalEvaluator(
        {row["_id"]: row["text"] for row in queries if row["_id"] in relevant},
        {name: " ".join(cells) for name, cells in rows.items()},
        relevant,
        write_csv=False,
    )
    return list(rows.values()), evaluator


def blocks(page, part):
    """The code blocks of a page from the one on that has this part."""
    found = [block for block in BLOCKS if block.document == f"docs/{page}"]
    (first,) = [place for place, block in enumerate(found) if part in block.text]
    return found[first:]


def commands(page, part):
    block = blocks(page, part)[0]
    return [command_of(line) for line in block.lines]


def run(command, *more, **replaced):
    arguments = [replaced.get(argument.split("/")[-1], argument) for argument in command.arguments]
    assert dystress.main([command.program, *arguments, *more]) == 0
    reset_accelerator()


def load(name, **options):
    return SentenceTransformer(name, device="cpu", **options)


@pytest.mark.slow(30)
def test_tickets(cisi):
    """A file gives the vectors of the same rows in memory; the subject is the title."""
    rows, _ = cisi
    with open("tickets.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("status", "subject", "body"))
        for row in rows:
            table.writerow(("open", *row))
    (command,) = commands("train.md", "tickets.csv")
    run(command, "--max_steps=20")
    texts = [f"{subject} {body}" for subject, body in rows]
    columns = {"text_columns": ["subject", "body"], "max_steps": 20}
    table = Dataset.from_list(
        [dict(zip(columns["text_columns"], row, strict=True)) for row in rows]
    )
    joined = dystress_text.train("own-text", texts=table, output_dir="joined", **columns)
    np.testing.assert_array_equal(load("out_tickets").encode(texts), joined.model.encode(texts))


@pytest.mark.slow(60)
def test_a_hybrid_beats_its_dense_model(cisi):
    rows, evaluate = cisi
    lines = [" ".join(row) for row in rows]
    Path("mine.txt").write_text("\n".join(lines), encoding="utf-8")
    load(ENCODER).save("dense")
    command = commands("search.md", "--hybrid ")[0]
    loading = blocks("search.md", "--hybrid ")[1]
    run(command, "--max_steps=40", **{"all-MiniLM-L6-v2": "dense"})
    names = {"SentenceTransformer": load}
    run_snippet(loading.text, names)
    dense = evaluate(load("dense"))["cosine_ndcg@10"]
    hybrid = evaluate(names["model"])["cosine_ndcg@10"]
    assert hybrid > dense + 0.05


@pytest.mark.slow(30)
def test_models_judged_on_own_queries():
    """The model that finds the one relevant document of each query first is the better one."""
    load(ENCODER).save("A")
    static = dystress_text.train("own-text", train_file="mine.txt", max_steps=2, output_dir="B")
    queries = Path("sentences.txt").read_text().splitlines()[:10]
    Path("queries.txt").write_text("\n".join(queries))
    (command,) = commands("evaluate.md", "dystress judge")
    Path("keys.txt").touch()
    assert dystress.main([command.program, *command.arguments, "--answers=keys.txt"]) == 2
    documents = [row["text"] for row in read_lines(Path("judged/corpus.jsonl"))]
    first = static.model.similarity(static.model.encode(queries), static.model.encode(documents))
    best = first.argmax(1).tolist()
    shown = json.loads(Path("judged/judge.json").read_text())["shown"]
    Path("keys.txt").write_text("".join("nr"[best[q] == d] for q, d in shown))
    run(command, "--answers=keys.txt")
    figures = dystress_text.evaluate(["A", "B"], retrieval="judged")
    assert figures["B"]["judged nDCG@10"] == pytest.approx(100, abs=0.1)


def pair_similarities(folders):
    """Each model's similarities of the pairs in pairs.csv, and their scores."""
    with open("pairs.csv", newline="") as file:
        rows = list(csv.reader(file))[1:]
    first, second, scores = zip(*rows, strict=True)
    models = [load(folder) for folder in folders]
    found = [
        model.similarity_pairwise(model.encode(first), model.encode(second)) for model in models
    ]
    return [each.numpy() for each in found], np.array([float(score) for score in scores])


def resampled(statistic, *units):
    """SciPy's resamples of a statistic of columns, by rows."""
    options = {"paired": True, "vectorized": False, "n_resamples": 2000, "rng": 1}
    return bootstrap(units, statistic, method="percentile", **options).bootstrap_distribution


def shown_difference(printed, name, other):
    """A difference and its interval, printed as ``B - A: +2.1 (0.4 to 3.9; ...)``."""
    number = r"([+-]?[\d.]+)"
    names = re.escape(f"{name} - {other}: ")
    (found,) = re.findall(rf"{names}{number} \({number} to {number};", printed)
    return [float(each) for each in found]


@pytest.mark.slow(30)
def test_the_difference_of_models_on_own_search(shared, capsys):
    """Its interval is that of SciPy's paired bootstrap, of scikit-learn's nDCG."""
    cisi = shared / "data" / "retrieval" / "cisi"
    Path("COLLECTION").symlink_to(cisi)
    folders = ["mine-0/", "mine-1/", "mine-2/"]
    for steps, folder in enumerate(folders, 1):
        options = {"train_file": "mine.txt", "max_steps": 4**steps}
        dystress_text.train("own-text", output_dir=folder, **options)
    documents = {
        row["_id"]: f"{row['title']} {row['text']}" for row in read_lines(cisi / "corpus.jsonl")
    }
    relevant = relevant_in(cisi, documents)
    queries = [row for row in read_lines(cisi / "queries.jsonl") if row["_id"] in relevant]
    gains = np.zeros(len(queries))
    for folder, sign in ((folders[2], 100), (folders[0], -100)):
        model = load(folder)
        vectors = model.encode_query([row["text"] for row in queries])
        similarity = model.similarity(vectors, model.encode_document([*documents.values()])).numpy()
        for place, query in enumerate(queries):
            scores = [document in relevant[query["_id"]] for document in documents]
            gains[place] += sign * ndcg_score([scores], [similarity[place]], k=10)
    drawn = resampled(np.mean, gains)
    _, command = commands("evaluate.md", "--retrieval COLLECTION")
    capsys.readouterr()
    run(command)
    shown = shown_difference(capsys.readouterr().out, folders[2], folders[0])
    assert shown == pytest.approx([gains.mean(), *np.quantile(drawn, [0.025, 0.975])], abs=0.3)


@pytest.mark.slow(150)
def test_three_losses_on_own_pairs(shared, capsys):
    """The best, its lead, and the interval over pairs and seeds are SciPy's."""
    Path("COLLECTION").symlink_to(shared / "data" / "retrieval" / "cisi")
    sweep, report = commands("compare.md", "--pairs pairs.csv")
    again = sweep._replace(arguments=("--seeds", "0", "1", *sweep.arguments))
    run(again, "--max_steps=4")
    printed = capsys.readouterr().out
    (answer,) = re.findall("^Of the trained models .* on pairs .*$", printed, re.MULTILINE)
    best, second = re.search(r"; (\S+) - (\S+): ", answer).groups()
    losses = {loss: loss.replace("(", "-").replace(")", "") for loss in (best, second)}
    folders = [f"compared/{name}-seed-{seed}" for name in losses.values() for seed in range(2)]
    similarities, scores = pair_similarities([*folders, "compared/untrained"])

    def figures(*columns):
        *models, scores = columns
        return np.array([100 * spearmanr(model, scores).statistic for model in models])

    def gain(first, second, untrained, scores):
        measured = figures(first, second, untrained, scores)
        return measured[:2].mean() - measured[2]

    *runs, untrained = figures(*similarities, scores)
    assert shown_difference(answer, best, second)[0] == pytest.approx(
        np.mean(runs[:2]) - np.mean(runs[2:]), abs=0.06
    )
    drawn = resampled(gain, *similarities[:2], similarities[-1], scores)
    error = np.std(runs[:2], ddof=1) / 2**0.5
    over_seeds = drawn[:, None] + error * t.ppf((np.arange(1000) + 0.5) / 1000, 1)
    expected = [np.mean(runs[:2]) - untrained, *np.quantile(over_seeds, [0.025, 0.975])]
    shown = shown_difference(printed, best, "untrained")
    assert shown == pytest.approx(expected, abs=0.5)
    run(report)
    assert answer in capsys.readouterr().out
    run(again, "--max_steps=4")  # nothing is left to do
    assert "evaluate\n" not in capsys.readouterr().out


@pytest.mark.slow(20)
def test_nearest_texts_on_the_page():
    """They are those of sentence-transformers; the page of a private run shows none."""
    (command,) = commands("train.md", "--output_dir out_mine")
    (private,) = commands("train.md", "--no_samples")
    run(command, "--max_steps=20")
    run(private, "--max_steps=2")
    texts = Path("mine.txt").read_text().splitlines()
    model = load("out_mine")
    vectors = model.encode(texts)
    similarity = model.similarity(vectors, vectors).fill_diagonal_(-1)
    page = html.unescape(Path("out_mine/report.html").read_text())
    table = page.partition("nearest three of each")[2].partition("</table>")[0]
    cells = re.findall("<td.*?>(.*?)</td>", table, re.DOTALL)
    assert len(cells) == 12 * 3  # a text, its nearest before training and after
    for text, nearest in zip(cells[::3], cells[2::3], strict=True):
        row = similarity[texts.index(text)]
        shown = [row[texts.index(each)] for each in nearest.split("\n\n")]
        assert shown == pytest.approx(row.topk(3).values.tolist(), abs=1e-5)
    page = html.unescape(Path("out_private/report.html").read_text())
    assert not any(text in page for text in texts)


@pytest.mark.slow(30)
def test_triplets_to_onnx():
    training, export = commands("supervised.md", "--to onnx")
    run(training, *SHORT, "--max_steps=4")
    run(export)
    names = {}
    snippet = blocks("export.md", "InferenceSession")[0].text
    run_snippet(snippet.replace("out-onnx", "out_pairs-onnx"), names)
    expected = load("out_pairs").encode(["A man plays a guitar.", "It is raining. " * 200])
    np.testing.assert_allclose(names["vectors"], expected, atol=1e-5)


# What its scripts set (commit 49fa580). The gradient of four processes is divided by four, then
# clipped at 1.
BOTH = {
    "model_name_or_path": "bert-base-uncased",
    "max_seq_length": 32,
    "metric_for_best_model": "stsb_spearman",
    "eval_steps": 125,
    "pooler_type": "cls",
    "overwrite_output_dir": True,
    "mixed_precision": "fp16",
    "weight_decay": 0.0,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.0,
    "loss": "infonce(0.05)",
}
UNSUPERVISED = {
    "train_file": "data/wiki1m_for_simcse.txt",
    "num_train_epochs": 1,
    "train_batch_size": 64,
    "learning_rate": 3e-5,
    "mlp_only_train": True,
    "max_grad_norm": 1.0,
    "supervised": False,
}
SUPERVISED = {
    "train_file": "data/nli_for_simcse.csv",
    "num_train_epochs": 3,
    "train_batch_size": 4 * 128,
    "learning_rate": 5e-5,
    "mlp_only_train": None,
    "max_grad_norm": 4.0,
    "supervised": True,
}


@pytest.mark.slow(60)
@pytest.mark.parametrize("supervised", [False, True])
def test_simcses_two_scripts(supervised, shared):
    """The settings are the scripts', only the supervised model keeps its head, and the recorded
    figure of STS-B dev is that of the saved model.
    """
    command = commands("from-simcse.md", "my-sup-simcse")[supervised]
    options = parse(list(command.arguments)).options()
    expected = BOTH | (SUPERVISED if supervised else UNSUPERVISED)
    assert {name: options[name] for name in expected} == expected
    texts = "triplets.csv" if supervised else "mine.txt"
    place = Path("senteval/STS/STSBenchmark/sts-dev.csv")
    lines = (shared / "data" / place).read_text(encoding="utf-8").splitlines()[:200]
    place.parent.mkdir(parents=True)
    place.write_text("\n".join(lines), encoding="utf-8")
    shorter = [*SHORT, "--max_steps=4", "--eval_steps=2", "--data_dir=."]
    run(command, "--model_name_or_path=bert-mini-wiki", f"--train_file={texts}", *shorter)
    model = load(options["output_dir"])
    assert any(isinstance(module, Dense) for module in model) == supervised
    *_, scores, first, second = zip(*(line.split("\t")[:7] for line in lines), strict=True)
    similarity = model.similarity_pairwise(model.encode(first), model.encode(second))
    record = json.loads(Path(options["output_dir"], "run.json").read_text())
    figure = 100 * spearmanr(similarity, [float(score) for score in scores]).statistic
    assert record["trained"]["sts_b_dev_spearman"] == pytest.approx(figure, abs=0.01)


@pytest.mark.slow(20)
def test_matryoshka_in_sentence_transformers_trainer():
    """The first numbers of a vector have a lower InfoNCE, by hand, than before."""
    load(ENCODER).save("out")
    pairs = eval_pairs("mini_sts")
    rows = zip(pairs.first, pairs.second, pairs.scores, strict=True)
    anchors, positives = zip(*(row[:2] for row in rows if row[2] >= 4), strict=True)
    first, nested, *_ = blocks("sentence-transformers.md", "DySTreSSLoss")
    names = {"__name__": "snippet"}
    run_snippet(first.text, names)
    names["pairs"] = Dataset.from_dict({"anchor": anchors, "positive": positives})

    def infonce(model):
        z1 = normalize(torch.as_tensor(model.encode(anchors)))
        z2 = normalize(torch.as_tensor(model.encode(positives)))
        return cross_entropy(z1 @ z2.T / 0.05, torch.arange(len(z1))).item()

    before = infonce(load("out", truncate_dim=64))
    run_snippet(nested.text, names)
    assert names["short"].encode("It rains.").shape == (64,)
    assert infonce(names["short"]) < before - 0.05


@pytest.mark.slow(20)
def test_a_temperature_of_ones_own():
    Path("my_loss.py").write_text(OWN_CLASS)
    *_, command = commands("losses.md", "my_loss.")
    run(command, *SHORT, "--max_steps=2", "--eval_set=none", "--train_file=mine.txt")
    record = json.loads(Path("out_quadratic/run.json").read_text())
    anchors, positives = normalize(torch.randn(2, 8, 4), dim=2)
    similarity = anchors @ positives.T
    expected = cross_entropy(similarity / (0.05 + 0.02 * similarity**2), torch.arange(8))
    torch.testing.assert_close(
        dystress_text.parse_loss(record["settings"]["loss"])(anchors, positives), expected
    )


def messages(language):
    """What programs of this machine say in a language."""
    texts = {}
    for name in ("coreutils", "dpkg", "gnupg2", "glib20"):
        found = gettext.find(name, "/usr/share/locale", [language])
        if found is None:
            pytest.skip(f"no messages of {name} in the language {language}")
        with open(found, "rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog.values()
        texts |= dict.fromkeys(" ".join(str(message).split()) for message in catalog)
    return [text for text in texts if 60 <= len(text.encode()) <= 900]


@pytest.mark.slow(60)
@pytest.mark.parametrize(
    ("place", "name", "language"), [(0, "german", "de"), (1, "japanese", "ja")]
)
def test_german_and_japanese(place, name, language):
    """The two parts of held-out texts find each other, more often than by the lexical baseline."""
    texts = messages(language)
    rest = [text for number, text in enumerate(texts) if number % 8]
    Path(f"{name}.txt").write_text("\n".join(rest), encoding="utf-8")
    run(commands("train.md", "japanese.txt")[place], "--max_steps=100")
    parts = {"queries": [], "corpus": []}
    for number, text in enumerate(texts[::8]):
        middle = len(text) // 2
        parts["queries"].append({"_id": str(number), "text": text[:middle]})
        parts["corpus"].append({"_id": str(number), "text": text[middle:]})
    for file, rows in parts.items():
        lines = (json.dumps(row) for row in rows)
        Path("parts", f"{file}.jsonl").write_text("\n".join(lines))
    ids = range(len(parts["corpus"]))
    lines = ["query-id\tcorpus-id\tscore", *(f"{each}\t{each}\t1" for each in ids)]
    Path("parts/qrels.tsv").write_text("\n".join(lines))
    found = dystress_text.evaluate(f"out_{name}", retrieval="parts")
    lexical = found["lexical"]["parts nDCG@10"]
    trained = found[f"out_{name}"]["parts nDCG@10"]
    model = load(f"out_{name}")
    first = model.encode_query([row["text"] for row in parts["queries"]])
    second = model.encode_document([row["text"] for row in parts["corpus"]])
    scores = first @ second.T
    ranks = (scores >= np.diag(scores)[:, None]).sum(1)
    by_hand = 100 * np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0).mean()
    assert trained == pytest.approx(by_hand, abs=0.1)  # ties
    assert trained > lexical > 12
