"""The lexical baseline: TF-IDF against scikit-learn and a loop, BM25 against a loop in fp64."""

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
from dystress_text.evaluation.lexical import LexicalBaseline, bm25_tokens, not_beaten, tf_idf_tokens
from dystress_text.evaluation.results import read_results
from dystress_text.evaluation.retrieval import read_collection
from dystress_text.evaluation.sts import evaluate_sts_task
from dystress_text.io.paths import EMBEDDED
from dystress_text.programs.senteval import evaluate, main
from dystress_text.programs.train import main as train
from dystress_text.training.run_record import RunRecord

PAIRS = eval_pairs("mini_sts")
TOKENIZER = Tokenizer.from_file(str(EMBEDDED / "bert-mini-wiki" / "tokenizer.json"))
VOCABULARY = TOKENIZER.get_vocab()


def loop(texts, first, second):
    """Return the cosine of each pair by the formula, over word pieces."""
    counts = {}
    for text in texts:
        counts[text] = Counter(TOKENIZER.encode(text, add_special_tokens=False).tokens)
        counts[text].pop("[UNK]", None)
    df = Counter(piece for of_text in counts.values() for piece in of_text)

    def vector(text):
        return {
            piece: (1 + log(tf)) * (log((1 + len(counts)) / (1 + df[piece])) + 1)
            for piece, tf in counts[text].items()
        }

    def dot(a, b):
        return sum(weight * b.get(piece, 0.0) for piece, weight in a.items())

    pairs = [(vector(a), vector(b)) for a, b in zip(first, second, strict=True)]
    return [dot(a, b) / ((dot(a, a) * dot(b, b)) ** 0.5 or 1.0) for a, b in pairs]


def test_cosines_equal_the_formula():
    first = (*PAIRS.first, "no ☃ no", "☃", "")
    second = (*PAIRS.second, "no no", "☃", "")
    found = LexicalBaseline().cosines(first, second)
    assert found == pytest.approx(loop({*first, *second}, first, second), abs=1e-9)
    assert list(found[-3:]) == [1, 0, 0]  # unknown marks do not count
    with pytest.raises(DataError):
        LexicalBaseline().cosines(["☃", ""], ["☃", "☃"])


def test_cosines_equal_scikit_learn():
    """The texts have whole words of the vocabulary alone."""
    texts = [
        " ".join(word for word in text.split() if word in VOCABULARY) for text in make_sentences(60)
    ]
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+")
    vectors = vectorizer.fit_transform(texts).toarray()
    expected = (vectors[:30] * vectors[30:]).sum(1)
    assert LexicalBaseline().cosines(texts[:30], texts[30:]) == pytest.approx(expected, abs=1e-9)


def test_search_equals_a_loop_over_bm25():
    documents = [*make_sentences(40, seed=1), "", "the of and", "cat cat cat"]
    queries = ["the cat sat", "cat cat bird", "a house of fish today", "zebra", "the", ""]
    kept = [
        [word for word in text.split() if len(word) > 1 and word not in STOPWORDS_EN]
        for text in documents
    ]
    mean = np.mean([len(tokens) for tokens in kept])
    df = Counter(word for tokens in kept for word in set(tokens))
    for query, hits in zip(queries, LexicalBaseline().search(queries, documents, 10), strict=True):
        scores = []
        for tokens in kept:
            score = 0.0
            for word in query.split():
                tf = tokens.count(word)
                idf = log(1 + (len(kept) - df[word] + 0.5) / (df[word] + 0.5))
                score += idf * tf / (tf + 1.5 * (0.25 + 0.75 * len(tokens) / mean))
            scores.append(score)
        best = sorted((score for score in scores if score), reverse=True)[:10]
        assert [score for _, score in hits] == pytest.approx(best, rel=1e-5)
        assert all(scores[index] == pytest.approx(score, rel=1e-5) for index, score in hits)
    with pytest.raises(DataError):
        LexicalBaseline().search(["the cat", ""], ["", "the"], 5)


def test_collections_and_tasks_measure_the_baseline(tmp_path):
    collection = read_collection(make_collection(tmp_path / "made"))
    queries = list(collection.queries.values())
    found = LexicalBaseline().search(queries, list(collection.documents.values()), 100)
    names = list(collection.documents)
    recall = [
        sum(names[index] in relevant for index, _ in hits) / len(relevant)
        for hits, relevant in zip(found, collection.relevant.values(), strict=True)
    ]
    scores = collection.scores(LexicalBaseline())
    assert scores["recall@100"] == pytest.approx(100 * np.mean(recall))
    entry = evaluate_sts_task(STS_SETS["mini_sts"], suite_folder("mini"), LexicalBaseline())
    rank = spearmanr(LexicalBaseline().cosines(PAIRS.first, PAIRS.second), PAIRS.scores).statistic
    assert entry["spearman"] == round(100 * rank, 2)


JAPANESE = [
    "猫がソファで眠っている",
    "犬が公園を走っている",
    "今日は天気がとても良い",
    "東京駅までの行き方を教えてください",
    "新しいコンピュータを買いました",
    "この本は面白くて難しい",
]


def test_bigrams_of_characters_equal_scikit_learn():
    first = JAPANESE
    second = [text[2:] + text[:2] for text in JAPANESE]
    tf_idf = TfidfVectorizer(analyzer="char", ngram_range=(2, 2), sublinear_tf=True)
    vectors = tf_idf.fit_transform([*first, *second]).toarray()
    expected = (vectors[:6] * vectors[6:]).sum(1)
    assert LexicalBaseline().cosines(first, second) == pytest.approx(expected, abs=1e-9)
    found = LexicalBaseline().search([text[3:8] for text in JAPANESE], JAPANESE, 3)
    assert [hits[0][0] for hits in found] == [0, 1, 2, 3, 4, 5]
    # one character, a word with pieces, and one that they cannot spell
    assert tf_idf_tokens(["猫 Cat ሰላም"]) == [["猫", "cat", "ሰላም"]]


def test_words_equal_bm25s():
    texts = [*PAIRS.first, "Über die Straße läuft", "", "a b cc", "It's the U.S. in 1999, don't"]
    tokens = bm25s.tokenize(texts, return_ids=False, stopwords="english", show_progress=False)
    assert [bm25_tokens(text) for text in texts] == tokens


def test_tables_and_lines_have_the_baseline(tiny_bert, tmp_path, capsys):
    """Transfer tasks have no baseline."""
    out = tmp_path / "out.jsonl"
    file = tmp_path / "lexical.jsonl"
    search = ["--suite=mini", f"--retrieval={make_collection(tmp_path / 'made')}"]
    assert main(["--model=lexical", *search, "--tasks=all", f"--output={file}"]) == 0
    sts, made = read_results(file)
    assert (sts.model, sts.task, made.task) == ("lexical", "MiniSTS", "made")
    capsys.readouterr()
    model = [f"--model={tiny_bert}", "--pooler_type=avg", f"--output={out}"]
    assert main([*model, *search, "--tasks", "MiniSTS", "MiniParaphrase"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.split("\n")]
    assert ["lexical", *[f"{made.figures[name]:.2f}" for name in made.shown]] in lines
    found = {each.task: each.lexical for each in read_results(out)}
    assert (found["MiniSTS"], found["made"]) == (sts.figures, made.figures)
    assert not found["MiniParaphrase"]


def test_sets_without_words_have_no_baseline(tiny_bert):
    rows = [("☃", "☂", 1), ("☂ ☂", "☃", 2), ("☃ ☂ ☂", "☃ ☃", 3)]
    assert evaluate(tiny_bert, rows, pooler_type="avg")["lexical"] == {}


def test_runs_record_and_show_the_baseline(flags, tmp_path, capsys):
    folder = make_collection(tmp_path / "made")
    more = ["--eval_set=stsb_dev mini_sts", f"--eval_retrieval={folder}"]
    assert train([*flags, *more]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    lexical = record["lexical"]
    trained = record["trained"]
    cosines = LexicalBaseline().cosines(PAIRS.first, PAIRS.second)
    expected = 100 * spearmanr(cosines, PAIRS.scores).statistic
    assert lexical["mini_sts_spearman"] == pytest.approx(expected)
    untrained = record["untrained"]["cls"]
    name = record["settings"]["model_name_or_path"]
    alone = evaluate(name, pooler_type="cls", retrieval=[folder])[name]
    assert untrained["made_mrr@10"] == pytest.approx(alone["made MRR@10"], abs=0.01)
    behind = not_beaten(RunRecord.from_json(record))
    assert "\n".join(["", *behind, ""]) in capsys.readouterr().out
    metric = "sts_b_dev_spearman"
    cells = f"<td>{trained[metric]:.2f}</td><td>{lexical[metric]:.2f}</td></tr>"
    assert cells in (tmp_path / "out" / "report.html").read_text()
