"""The lexical baseline: TF-IDF against scikit-learn, BM25 against a loop."""

import re
from math import log

import numpy as np
import pytest
import snowballstemmer
from bm25s.stopwords import STOPWORDS_EN
from conftest import make_sentences
from scipy.stats import spearmanr
from search_cases import make_collection
from sklearn.feature_extraction.text import TfidfVectorizer

from dystress_text.analysis.finished_run import baseline_lines
from dystress_text.errors import DataError
from dystress_text.evaluation import classifier
from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.results import read_results
from dystress_text.programs.evaluate import evaluate, main
from dystress_text.programs.train import main as train
from dystress_text.training.run_folder import read_record

PAIRS = eval_pairs("mini_sts")
_stemmer = snowballstemmer.stemmer("english")


def stems(text, stop_words=()):
    words = re.findall(r"[^\W_]{2,}", text.lower())
    return [_stemmer.stemWord(word) for word in words if word not in stop_words]


def test_cosines_equal_scikit_learn():
    first = (*PAIRS.first, "no ☃ no", "the houses", "☃", "")
    second = (*PAIRS.second, "no no", "the housing", "☃", "")
    found = LexicalBaseline().cosines(first, second)
    tf_idf = TfidfVectorizer(sublinear_tf=True, tokenizer=stems, token_pattern=None)
    tf_idf.fit({*first, *second})
    expected = tf_idf.transform(first).multiply(tf_idf.transform(second)).sum(1)
    assert found == pytest.approx(np.ravel(expected), abs=1e-9)
    assert list(found[-4:].round(9)) == [1, 1, 0, 0]  # marks do not count
    with pytest.raises(DataError):
        LexicalBaseline().cosines(["☃", ""], ["☃", "☃"])


def bm25_scores(query, documents):
    """Return the score of each tokenised document, by Lucene's formula."""
    mean = np.mean([len(tokens) for tokens in documents])
    scores = []
    for tokens in documents:
        score = 0.0
        for word in query:
            tf = tokens.count(word)
            df = sum(word in other for other in documents)
            idf = log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            score += idf * tf / (tf + 1.5 * (0.25 + 0.75 * len(tokens) / mean))
        scores.append(score)
    return np.array(scores)


def test_search_equals_a_loop_over_bm25():
    documents = [*make_sentences(40, seed=1), "", "the of and", "cat cats cat"]
    queries = ["the cats sat", "cat cat bird", "a house of fish today", "zebra", "the", ""]
    tokens = [stems(text, STOPWORDS_EN) for text in documents]
    scores = np.array([*LexicalBaseline().scores(queries, documents)])
    assert scores.shape == (6, 43)
    found = LexicalBaseline().search(queries, documents, 10)
    for query, row, hits in zip(queries, scores, found, strict=True):
        expected = bm25_scores(stems(query, STOPWORDS_EN), tokens)
        assert row == pytest.approx(expected, rel=1e-5)
        best = sorted(expected[expected > 0], reverse=True)[:10]
        assert [score for _, score in hits] == pytest.approx(best, rel=1e-5)
        assert [expected[index] for index, _ in hits] == pytest.approx(best, rel=1e-5)
    with pytest.raises(DataError):
        list(LexicalBaseline().search(["the cat", ""], ["", "the"], 5))


GERMAN = ["Die Häuser sind groß und alt", "Der Hund ist nicht in dem Garten"]


def test_the_language_is_that_of_the_documents():
    """A plural finds its singular by the language's stemmer, whatever the queries' language."""
    queries = ["das Haus", "Hunde"]
    found = list(LexicalBaseline().search(queries, GERMAN, 1))
    assert [[index for index, _ in hits] for hits in found] == [[0], [1]]
    assert list(LexicalBaseline("english").search(["das Haus"], GERMAN, 1)) == [[]]
    assert list(LexicalBaseline().search(["die"], GERMAN, 1)) == [[]]  # a stop word
    assert next(LexicalBaseline("none").search(["die"], GERMAN, 1))[0][0] == 0


JAPANESE = [
    "猫がソファで眠っている",
    "犬が公園を走っている",
    "今日は天気がとても良い",
    "東京駅までの行き方を教えてください",
]


def test_bigrams_of_characters_equal_scikit_learn():
    second = [text[2:] + text[:2] for text in JAPANESE]
    tf_idf = TfidfVectorizer(analyzer="char", ngram_range=(2, 2), sublinear_tf=True)
    vectors = tf_idf.fit_transform([*JAPANESE, *second]).toarray()
    expected = (vectors[:4] * vectors[4:]).sum(1)
    assert LexicalBaseline().cosines(JAPANESE, second) == pytest.approx(expected, abs=1e-9)
    found = list(LexicalBaseline().search([text[3:8] for text in JAPANESE], JAPANESE, 1))
    assert [hits[0][0] for hits in found] == [0, 1, 2, 3]


def test_tables_and_lines_have_the_baseline(tiny_bert, tmp_path, capsys, monkeypatch):
    """Transfer tasks have no baseline."""
    monkeypatch.setattr(classifier, "MAX_EPOCHS", 2)
    out = tmp_path / "out.jsonl"
    file = tmp_path / "lexical.jsonl"
    search = ["--suite=mini", f"--retrieval={make_collection(tmp_path / 'made')}"]
    assert main(["--model=lexical", *search, "--tasks=all", f"--output={file}"]) == 0
    sts, made = read_results(file)
    cosines = LexicalBaseline().cosines(PAIRS.first, PAIRS.second)
    expected = 100 * spearmanr(cosines, PAIRS.scores).statistic
    assert sts.figures["spearman"] == pytest.approx(expected, abs=0.006)
    capsys.readouterr()
    model = [f"--model={tiny_bert}", "--pooler_type=avg", f"--output={out}", "--mode=fast"]
    assert main([*model, *search, "--tasks", "MiniSTS", "MiniParaphrase"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.split("\n")]
    label = ["TF-IDF/BM25", "over", "English", "stems"]
    # the baseline is not measured together with itself
    assert [*label, *(f"{figure:.2f}" for figure in made.figures.values()), "-"] in lines
    assert made.details["lexical_words"] == "English stems"
    found = {each.task: each.lexical for each in read_results(out)}
    assert found == {"MiniSTS": sts.figures, "MiniParaphrase": {}, "made": made.figures}


def test_sets_without_words_have_no_baseline(tiny_bert, tmp_path):
    pairs = tmp_path / "marks.csv"
    pairs.write_text("sentence1,sentence2,score\n☃,☂,1\n☂ ☂,☃,2\n☃ ☂ ☂,☃ ☃,3\n")
    assert evaluate(tiny_bert, pairs=pairs, pooler_type="avg")["lexical"] == {}


def test_runs_record_and_show_the_baseline(flags, tmp_path, capsys):
    folder = make_collection(tmp_path / "made", documents=60)
    assert train([*flags, "--eval_set=mini_sts", f"--retrieval={folder}", "--max_steps=2"]) == 0
    out = tmp_path / "out"
    record = read_record(out)
    cosines = LexicalBaseline().cosines(PAIRS.first, PAIRS.second)
    expected = 100 * spearmanr(cosines.round(6), PAIRS.scores).statistic
    assert record.lexical["mini_sts_spearman"] == pytest.approx(expected, abs=1e-4)
    name = record.settings["model_name_or_path"]
    alone = evaluate(name, pooler_type="cls", retrieval=[folder])[name]
    untrained = record.untrained["cls"]
    for measure in ("MRR@10", "nDCG@10 with BM25"):
        figure = untrained["made_" + measure.lower().replace(" ", "_")]
        assert figure == pytest.approx(alone[f"made {measure}"], abs=0.01)
    printed = capsys.readouterr().out
    for line in baseline_lines(record):
        assert line in printed
    page = (out / "report.html").read_text()
    for shown in (printed, page, (out / "README.md").read_text()):
        assert "with BM25 (z-scores of each query, weight 0.5)" in shown
    assert f"<td>{expected:.2f}</td>" in page
