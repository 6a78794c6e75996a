"""LexicalBaseline alone: TF-IDF against scikit-learn and a loop, BM25 against a loop in fp64, and the rows
they give.
"""

import json
from collections import Counter
from math import log

import bm25s
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
from dystress_text.evaluation.lexical import (
    TITLE,
    LexicalBaseline,
    not_beaten,
    pieces,
    words,
)
from dystress_text.evaluation.results import read_results
from dystress_text.evaluation.retrieval import read_collection
from dystress_text.evaluation.sts import evaluate_sts_task
from dystress_text.io.paths import EMBEDDED
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
    first, second = (*PAIRS.first, "no ☃ no", "☃", ""), (*PAIRS.second, "no no", "☃", "")
    found = LexicalBaseline().cosines(first, second)
    assert found == pytest.approx(loop({*first, *second}, first, second), abs=1e-9)
    assert list(found[-3:]) == [1, 0, 0]  # unknown marks do not count
    texts = [
        " ".join(word for word in text.split() if word in PIECES) for text in make_sentences(60)
    ]
    vectors = (
        TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts).toarray()
    )
    assert LexicalBaseline().cosines(texts[:30], texts[30:]) == pytest.approx(
        (vectors[:30] * vectors[30:]).sum(1), abs=1e-9
    )
    with pytest.raises(DataError, match="no text has a word"):
        LexicalBaseline().cosines(["☃", ""], ["☃", "☃"])


def test_search_ranks_as_a_loop_over_bm25_in_fp64():
    documents = [*make_sentences(40, seed=1), "", "the of and", "cat cat cat"]
    queries = ["the cat sat", "cat cat bird", "a house of fish today", "zebra", "the", ""]
    kept = [
        [word for word in text.split() if len(word) > 1 and word not in STOPWORDS_EN]
        for text in documents
    ]
    mean, df = (
        np.mean([len(of_text) for of_text in kept]),
        Counter(word for of_text in kept for word in set(of_text)),
    )
    for query, hits in zip(queries, LexicalBaseline().search(queries, documents, 10), strict=True):
        scores = {}
        for place, of_text in enumerate(kept):
            tf = Counter(of_text)
            scores[place] = sum(
                log(1 + (len(kept) - df[word] + 0.5) / (df[word] + 0.5))
                * tf[word] / (tf[word] + 1.5 * (0.25 + 0.75 * len(of_text) / mean))
                for word in query.split() if tf[word] and word not in STOPWORDS_EN
            )  # fmt: skip
        best = sorted((score for score in scores.values() if score), reverse=True)[:10]
        assert [score for _, score in hits] == pytest.approx(best, rel=1e-5)
        assert all(scores[place] == pytest.approx(score, rel=1e-5) for place, score in hits)
    with pytest.raises(DataError, match="no text has a word"):
        LexicalBaseline().search(["the cat", ""], ["", "the"], 5)


def test_a_collection_and_a_task_take_the_baseline_for_a_model(tmp_path):
    collection = read_collection(make_collection(tmp_path / "made"))
    scores, names = collection.scores(LexicalBaseline()), list(collection.documents)
    found = LexicalBaseline().search(
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
    entry = evaluate_sts_task(STS_SETS["mini_sts"], suite_folder("mini"), LexicalBaseline())
    rank = spearmanr(LexicalBaseline().cosines(PAIRS.first, PAIRS.second), PAIRS.scores).statistic
    assert entry["spearman"] == round(100 * rank, 2)
    file = tmp_path / STS_SETS["mini_sts"].files[0]
    file.parent.mkdir(parents=True)
    file.write_text("m\tx\t1\t1\t2.5\tcat\t\n" * len(PAIRS))
    with pytest.raises(DataError, match="all pairs have the same similarity"):
        evaluate_sts_task(STS_SETS["mini_sts"], tmp_path, LexicalBaseline())


JAPANESE = [
    "猫がソファで眠っている", "犬が公園を走っている", "今日は天気がとても良い",
    "東京駅までの行き方を教えてください", "新しいコンピュータを買いました", "この本は面白くて難しい",
]  # fmt: skip
GERMAN = [
    "Über die Straße läuft ein großer Hund.",
    "Äpfel, Öl und Übermut - 20 Stück!",
    "So war das.",
]


def test_texts_without_spaces_are_bigrams_of_characters_as_scikit_learn_has_them():
    first, second = JAPANESE, [text[2:] + text[:2] for text in JAPANESE]
    tf_idf = TfidfVectorizer(analyzer="char", ngram_range=(2, 2), sublinear_tf=True)
    vectors = tf_idf.fit_transform([*first, *second]).toarray()
    expected = (vectors[:6] * vectors[6:]).sum(1)
    assert LexicalBaseline().cosines(first, second) == pytest.approx(expected, abs=1e-9)
    spaced = [" ".join(text[i : i + 2] for i in range(len(text) - 1)) for text in JAPANESE]
    tokens = bm25s.tokenize(spaced, return_ids=False, show_progress=False)
    assert [words(text) for text in JAPANESE] == tokens
    found = LexicalBaseline().search([text[3:8] for text in JAPANESE], JAPANESE, 3)
    assert [hits[0][0] for hits in found] == [0, 1, 2, 3, 4, 5]
    # one character, a word with pieces, and one that they cannot spell
    assert pieces(["猫 Cat ሰላም"]) == [["猫", "cat", "ሰላም"]]


def test_texts_with_spaces_have_the_words_of_bm25s():
    texts = [*PAIRS.first, *GERMAN, "", "a b cc", "It's the U.S. in 1999, don't"]
    tokens = bm25s.tokenize(texts, return_ids=False, stopwords="english", show_progress=False)
    assert [words(text) for text in texts] == tokens
    same, other = LexicalBaseline().cosines(
        [GERMAN[0], GERMAN[0]], ["EIN GROSSER HUND LÄUFT ÜBER DIE STRASSE.", GERMAN[1]]
    )
    assert same > 0.5 > other


def test_the_baseline_is_a_row_of_every_table_and_in_every_line(tiny_bert, tmp_path, capsys):
    """Transfer tasks, which it is not measured on, are none that failed."""
    out, file = tmp_path / "out.jsonl", tmp_path / "lexical.jsonl"
    search = ["--suite=mini", f"--retrieval={make_collection(tmp_path / 'made')}"]
    assert main(["--model=lexical", *search, "--tasks=all", f"--output={file}"]) == 0
    sts, made = read_results(file)
    assert (sts.model, sts.task, made.task) == ("lexical", "MiniSTS", "made")
    assert capsys.readouterr().out.startswith(f"lexical: {TITLE}\n")
    model = [f"--model={tiny_bert}", "--pooler_type=avg", f"--output={out}"]
    assert main([*model, *search, "--tasks", "MiniSTS", "MiniParaphrase"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.split("\n")]
    figures = [f"{made.figures[name]:.2f}" for name in made.shown]
    assert [line[1:] for line in lines if line[:1] == ["lexical"]] == [
        [f"{sts.figures['spearman']:.2f}"] * 2,
        figures,
    ]
    found = {each.task: each.lexical for each in read_results(out)}
    assert (found["MiniSTS"], found["made"]) == (sts.figures, made.figures)
    assert not found["MiniParaphrase"]


def test_a_set_without_a_word_has_no_figure_and_says_so(tiny_bert, tmp_path, capsys):
    rows = [("☃", "☂", 1), ("☂ ☂", "☃", 2), ("☃ ☂ ☂", "☃ ☃", 3)]
    figures = evaluate(tiny_bert, rows, pooler_type="avg")
    assert figures["lexical"] == {}
    assert "lexical: pairs left out: no text has a word" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "message"), [
    (["lexical", "--tasks=MR"], "--tasks: the lexical baseline has figures on sts and search"),
    (["lexical", "--pooler_type=avg"], "--pooler_type: the lexical baseline has none"),
    (["lexical"], "--model: 'lexical' is the baseline and a folder; ./lexical is the folder"),
    (["words"], "--model: 'words' is called 'lexical'"),
])  # fmt: skip
def test_what_the_baseline_cannot_do_is_refused_in_a_line(
    options, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    if options == ["lexical"]:
        (tmp_path / "lexical").mkdir()
    assert main(["--model", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_run_says_where_the_baseline_is_better(flags, tmp_path, capsys):
    """In record, table and page, computed once; a metric that it does not have has none beside it."""
    folder = make_collection(tmp_path / "made")
    more = [
        "--eval_set=stsb_dev mini_sts",
        f"--eval_retrieval={folder}",
        "--eval_transfer=MiniQuestions",
    ]
    assert train([*flags, *more]) == 0
    record, out = json.loads((tmp_path / "out" / "run.json").read_text()), capsys.readouterr().out
    lexical, page = record["lexical"], (tmp_path / "out" / "report.html").read_text()
    names = [
        "sts_b_dev_spearman",
        "mini_sts_spearman",
        *(f"made_{m}" for m in ("ndcg@10", "mrr@10", "recall@100")),
    ]
    assert list(lexical) == [*names, "made_ndcg@10_graded", "avg_spearman"]
    expected = (
        100
        * spearmanr(LexicalBaseline().cosines(PAIRS.first, PAIRS.second), PAIRS.scores).statistic
    )
    assert lexical["mini_sts_spearman"] == pytest.approx(expected)
    assert out.count("\nlexical                  TF-IDF  ") == 2
    untrained, name = record["untrained"]["cls"], record["settings"]["model_name_or_path"]
    alone = evaluate(name, pooler_type="cls", retrieval=[folder])[name]
    assert [untrained[f"made_{m}"] for m in ("ndcg@10", "mrr@10", "recall@100")] == pytest.approx(
        [alone[f"made {m}"] for m in ("nDCG@10", "MRR@10", "recall@100")], abs=0.01
    )
    rivals = f"   untrained {untrained['made_mrr@10']:.2f}   lexical {lexical['made_mrr@10']:.2f}\n"
    assert f"{record['trained']['made_mrr@10']:8.2f}{rivals}" in out
    assert "\nmini-STS, untrained      cls  " in out
    behind = not_beaten(RunRecord.from_json(record))
    figures = f"{names[0]} {record['trained'][names[0]]:.1f}, TF-IDF/BM25 {lexical[names[0]]:.1f}"
    assert behind[0].endswith(figures)
    assert "\n".join(["", *behind, ""]) in out
    figures = (
        f"trained {record['trained'][names[0]]:.2f}, TF-IDF/BM25 {lexical[names[0]]:.2f}; 1 seed"
    )
    assert f"{figures}</p>" in page
    assert "<th>TF-IDF/BM25</th>" in page
    assert (
        f"<td>{record['trained'][names[0]]:.2f}</td><td>{lexical[names[0]]:.2f}</td></tr>" in page
    )
    assert "<li>lexical: pairs by the cosine of TF-IDF" in page
    better = RunRecord(words=lexical, trained={name: lexical[name] + 1 for name in names})
    assert not_beaten(better) == not_beaten(RunRecord(words=lexical)) == []
