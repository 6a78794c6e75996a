"""Words alone: TF-IDF against scikit-learn and a loop, BM25 against a loop in fp64, and the rows
they give.
"""

import json
import re
from collections import Counter
from math import log

import numpy as np
import pytest
from bm25s.stopwords import STOPWORDS_EN
from conftest import make_sentences
from scipy.stats import spearmanr
from search_cases import make_collection
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers import Tokenizer

from dystress_text.errors import DataError
from dystress_text.evaluation.catalogue import STS_SETS, eval_pairs, suite_folder
from dystress_text.evaluation.results import read_results
from dystress_text.evaluation.retrieval import read_collection
from dystress_text.evaluation.sts import evaluate_sts_task
from dystress_text.evaluation.words import TITLE, Words, not_beaten
from dystress_text.files.places import EMBEDDED
from dystress_text.programs.senteval import evaluate, main
from dystress_text.programs.train import main as train
from dystress_text.training.run_record import RunRecord

PAIRS = eval_pairs("mini_sts")
TOKENIZER = Tokenizer.from_file(str(EMBEDDED / "bert-mini-wiki" / "tokenizer.json"))
PIECES = TOKENIZER.get_vocab()


def loop(texts, first, second):
    """The formula of the docstring, pair by pair, over the pieces of the embedded model."""
    counts = {
        text: Counter(TOKENIZER.encode(text, add_special_tokens=False).tokens) for text in texts
    }
    df = Counter(piece for of in counts.values() for piece in of)

    def vector(text):
        known = {piece: tf for piece, tf in counts[text].items() if piece != "[UNK]"}
        return {
            p: (1 + log(tf)) * (log((1 + len(counts)) / (1 + df[p])) + 1) for p, tf in known.items()
        }

    def dot(a, b):
        return sum(weight * b.get(piece, 0.0) for piece, weight in a.items())

    pairs = [(vector(a), vector(b)) for a, b in zip(first, second, strict=True)]
    return [dot(a, b) / ((dot(a, a) * dot(b, b)) ** 0.5 or 1.0) for a, b in pairs]


def test_pairs_have_the_cosines_of_the_formula_and_of_scikit_learn():
    """The embedded set has words of several pieces, repeated pieces and marks; scikit-learn sees
    whole words.
    """
    first, second = (*PAIRS.first, "no 𓀀 no", "𓀀", ""), (*PAIRS.second, "no no", "𓀀", "")
    found = Words().cosines(first, second)
    assert found == pytest.approx(loop({*first, *second}, first, second), abs=1e-9)
    assert list(found[-3:]) == [1, 0, 0]  # unknown pieces do not count
    texts = [
        " ".join(word for word in text.split() if word in PIECES) for text in make_sentences(60)
    ]
    vectors = (
        TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts).toarray()
    )
    assert Words().cosines(texts[:30], texts[30:]) == pytest.approx(
        (vectors[:30] * vectors[30:]).sum(1), abs=1e-9
    )
    assert not Words().cosines(["𓀀", ""], ["𓀀", "𓀀"]).any()


def test_search_ranks_as_a_loop_over_bm25_in_fp64():
    documents = [*make_sentences(40, seed=1), "", "the of and", "cat cat cat"]
    queries = ["the cat sat", "cat cat bird", "a house of fish today", "zebra", "the", ""]
    kept = [
        [word for word in text.split() if len(word) > 1 and word not in STOPWORDS_EN]
        for text in documents
    ]
    mean, df = (
        np.mean([len(words) for words in kept]),
        Counter(word for words in kept for word in set(words)),
    )
    for query, hits in zip(queries, Words().search(queries, documents, 10), strict=True):
        scores = {}
        for place, words in enumerate(kept):
            tf = Counter(words)
            scores[place] = sum(
                log(1 + (len(kept) - df[word] + 0.5) / (df[word] + 0.5))
                * tf[word] / (tf[word] + 1.5 * (0.25 + 0.75 * len(words) / mean))
                for word in query.split() if tf[word] and word not in STOPWORDS_EN
            )  # fmt: skip
        best = sorted((score for score in scores.values() if score), reverse=True)[:10]
        assert [score for _, score in hits] == pytest.approx(best, rel=1e-5)
        assert all(scores[place] == pytest.approx(score, rel=1e-5) for place, score in hits)
    assert Words().search(["the cat", ""], ["", "the"], 5) == [[], []]


def test_a_collection_and_a_task_take_words_for_a_model(tmp_path):
    collection = read_collection(make_collection(tmp_path / "made"))
    scores, names = collection.scores(Words()), list(collection.documents)
    found = Words().search(
        list(collection.queries.values()), list(collection.documents.values()), 100
    )
    recall = [
        sum(names[place] in relevant for place, _ in hits) / len(relevant)
        for hits, relevant in zip(found, collection.relevant.values(), strict=True)
    ]
    assert (list(scores), scores["recall@100"]) == (
        collection.metrics,
        pytest.approx(100 * np.mean(recall)),
    )
    entry = evaluate_sts_task(STS_SETS["mini_sts"], suite_folder("mini"), Words())
    rank = spearmanr(Words().cosines(PAIRS.first, PAIRS.second), PAIRS.scores).statistic
    assert entry["spearman"] == round(100 * rank, 2)
    file = tmp_path / STS_SETS["mini_sts"].files[0]
    file.parent.mkdir(parents=True)
    file.write_text("m\tx\t1\t1\t2.5\t𓀀\t\n" * len(PAIRS))
    with pytest.raises(DataError, match="all pairs have the same similarity"):
        evaluate_sts_task(STS_SETS["mini_sts"], tmp_path, Words())


def test_the_program_has_a_row_of_words_alone_and_beside_a_model(
    tiny_bert, tmp_path, monkeypatch, capsys
):
    """Transfer tasks, which words are not measured on, are none that failed."""
    monkeypatch.chdir(tmp_path)
    search = ["--suite=mini", f"--retrieval={make_collection(tmp_path / 'made')}"]
    assert main(["--model=words", *search, "--tasks=all"]) == 0
    alone, file = capsys.readouterr().out, tmp_path / "results.jsonl"
    sts, search_result = read_results(file)
    assert (sts.model, sts.task, search_result.task) == ("words", "MiniSTS", "made")
    assert alone.startswith(f"words: {TITLE}\n")
    both = [
        "--model",
        "words",
        str(tiny_bert),
        "--pooler_type=avg",
        *search,
        "--tasks",
        "MiniSTS",
        "MiniParaphrase",
    ]
    assert main(both) == 0
    out = capsys.readouterr().out
    assert re.search(rf"\nwords +{sts.figures['spearman']:.2f} .*\n{tiny_bert} +-?\d", out)
    assert re.search(rf"\nwords +missing +-\n{tiny_bert} +\d", out)
    row = re.findall(r"\nwords +(\S+ .*)", out)[-1].split()
    assert row == [
        f"{search_result.figures[metric]:.2f}"
        for metric in read_collection(tmp_path / "made").metrics
    ]
    (tiny_bert / file.name).unlink()


@pytest.mark.parametrize(("options", "message"), [
    (["--tasks=MR"], "--tasks: words alone are measured on sts and on search, not on transfer tasks"),
    (["--pooler_type=avg"], "--pooler_type: words have none"),
    ([], "--model: 'words' is the baseline and a folder; ./words is the folder"),
])  # fmt: skip
def test_what_words_cannot_do_is_refused_in_a_line(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if not options:
        (tmp_path / "words").mkdir()
    assert main(["--model=words", *options]) == 2
    assert capsys.readouterr().err.endswith(f"{message}\n")


def test_a_run_says_where_words_alone_are_better(flags, tmp_path, capsys):
    """In record, table and page, computed once; a metric without a figure of words has none beside
    it.
    """
    folder = make_collection(tmp_path / "made")
    more = [
        "--eval_set=stsb_dev mini_sts",
        f"--eval_retrieval={folder}",
        "--eval_transfer=MiniQuestions",
    ]
    assert train([*flags, *more]) == 0
    record, out = json.loads((tmp_path / "out" / "run.json").read_text()), capsys.readouterr().out
    words, page = record["words"], (tmp_path / "out" / "report.html").read_text()
    names = [
        "sts_b_dev_spearman",
        "mini_sts_spearman",
        *(f"made_{m}" for m in ("ndcg@10", "mrr@10", "recall@100")),
    ]
    assert list(words) == [*names, "made_ndcg@10_graded", "avg_spearman"]
    expected = 100 * spearmanr(Words().cosines(PAIRS.first, PAIRS.second), PAIRS.scores).statistic
    assert words["mini_sts_spearman"] == pytest.approx(expected)
    assert out.count("\nwords                    TF-IDF  ") == 2
    untrained, name = record["untrained"]["cls"], record["settings"]["model_name_or_path"]
    (alone,) = evaluate(
        name, pooler_type="cls", retrieval=[folder], output=tmp_path / "alone.jsonl"
    ).values()
    assert [untrained[f"made_{m}"] for m in ("ndcg@10", "mrr@10", "recall@100")] == pytest.approx(
        [alone[f"made {m}"] for m in ("nDCG@10", "MRR@10", "recall@100")], abs=0.01
    )
    rivals = f"   untrained {untrained['made_mrr@10']:.2f}   words {words['made_mrr@10']:.2f}\n"
    assert f"{record['trained']['made_mrr@10']:8.2f}{rivals}" in out
    assert "\nmini-STS, untrained      cls  " in out
    behind = not_beaten(RunRecord.from_json(record))
    figures = f"{names[0]} {record['trained'][names[0]]:.1f}, TF-IDF/BM25 {words[names[0]]:.1f}"
    assert behind[0].endswith(figures)
    assert "\n".join(["", *behind, ""]) in out
    figures = (
        f"trained {record['trained'][names[0]]:.2f}, TF-IDF/BM25 {words[names[0]]:.2f}; 1 seed"
    )
    assert f"{figures}</p>" in page
    assert "<th>TF-IDF/BM25</th>" in page
    assert f"<td>{record['trained'][names[0]]:.2f}</td><td>{words[names[0]]:.2f}</td></tr>" in page
    assert "<li>words: pairs by the cosine of TF-IDF" in page
    better = RunRecord(words=words, trained={name: words[name] + 1 for name in names})
    assert not_beaten(better) == not_beaten(RunRecord(words=words)) == []
