"""STS files and scores, against SciPy and plain loops."""

import math
import zlib

import numpy as np
import pytest
import torch
from scipy import stats

from dystress_text.evaluation.catalogue import STS_TASKS
from dystress_text.evaluation.readers import StsPairs, concatenate, read_sts_benchmark, read_sts_subset
from dystress_text.evaluation.sts import evaluate_sts, evaluate_sts_task, score_vectors, spearman
from dystress_text.files.places import EMBEDDED


def arbitrary_vectors(sentences):
    """A deterministic embedder: each sentence has a random vector of its own, so that no two cosines tie."""
    seeds = [zlib.crc32(sentence.encode()) for sentence in sentences]
    return torch.stack([torch.randn(8, generator=torch.Generator().manual_seed(s)).double() for s in seeds])


def test_scores_are_those_of_a_literal_computation():
    pairs = read_sts_benchmark(EMBEDDED / "senteval/STS/MiniSTS/mini-sts.csv")
    result = evaluate_sts(pairs, arbitrary_vectors)
    a, b = arbitrary_vectors(pairs.first).numpy(), arbitrary_vectors(pairs.second).numpy()
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert result.spearman == pytest.approx(100 * stats.spearmanr(cosines, pairs.scores).statistic, abs=1e-6)
    positive = pairs.scores > 4
    assert result.alignment == pytest.approx(np.mean(2 - 2 * cosines[positive]), abs=1e-9)
    distinct = arbitrary_vectors(pairs.sentences).numpy()
    units = distinct / np.linalg.norm(distinct, axis=1, keepdims=True)
    gram = units @ units.T
    off = ~np.eye(len(units), dtype=bool)
    assert result.uniformity == pytest.approx(math.log(np.exp(-2 * (2 - 2 * gram[off])).mean()), abs=1e-9)


def test_every_distinct_sentence_is_embedded_once():
    pairs = StsPairs(("a b", "c", "a b"), ("c", "d", "e"), np.array([1.0, 2.0, 5.0]))
    asked = []
    evaluate_sts(pairs, lambda s: asked.extend(s) or arbitrary_vectors(s))
    assert sorted(asked) == ["a b", "c", "d", "e"]


def test_constant_or_missing_numbers_have_no_correlation():
    x = np.array([1.0, 2.0, 3.0])
    assert spearman(x, x) == pytest.approx(100)
    assert math.isnan(spearman(np.ones(3), x))
    assert math.isnan(spearman(np.array([1.0, np.nan, 2.0]), x))
    pairs = StsPairs(("a", "b", "c"), ("d", "e", "f"), x)
    assert math.isnan(score_vectors(pairs, torch.ones(6, 4)).spearman)
    assert math.isnan(score_vectors(pairs, torch.full((6, 4), torch.nan)).spearman)


def test_lines_of_the_benchmark_are_split_at_line_feeds_and_tabs_alone(tmp_path):
    file = tmp_path / "sts.csv"
    file.write_bytes('g\tf\ty\t1\t3.5\t"An  odd\u2028line\tsecond\textra\ng\tf\ty\t2\t0\tthird\tfourth\r\n'.encode())
    pairs = read_sts_benchmark(file)
    assert pairs.first == ('"An odd line', "third")
    assert pairs.second == ("second", "fourth")
    assert pairs.scores.tolist() == [3.5, 0.0]


def test_unscored_pairs_of_a_year_are_dropped(tmp_path):
    (tmp_path / "input").write_text("a b\tc\nd\te\nf\tg\n")
    subsets = []
    for golds in ("1\n\n3\n", "4.5\n2\n1\n"):
        (tmp_path / "gs").write_text(golds)
        subsets.append(read_sts_subset(tmp_path / "input", tmp_path / "gs"))
    whole = concatenate("STS13", subsets)
    assert whole.scores.tolist() == [1, 3, 4.5, 2, 1]
    assert whole.first == ("a b", "f", "a b", "d", "f")


def test_real_sts_equals_scipy(shared):
    """STS12 by a reader of its own: all subsets together, mean, weighted mean; unscored pairs are left out."""
    folder = shared / "data" / "senteval"
    if not (folder / "STS" / "STS12-en-test").is_dir():
        pytest.skip("no STS12")

    def embed(sentences):
        letters = np.array([[s.lower().count(chr(97 + k)) + 0.01 * len(s) for k in range(26)] for s in sentences])
        return torch.from_numpy(letters)

    result = evaluate_sts_task(STS_TASKS[0], folder, embed)
    every, figures, sizes = [], [], []
    for file in sorted((folder / "STS" / "STS12-en-test").glob("STS.input.*.txt")):
        golds = file.with_name(file.name.replace("input", "gs")).read_text().split("\n")
        pairs = [line.split("\t") for line in file.read_text().split("\n")]
        rows = [(p, float(g)) for p, g in zip(pairs, golds, strict=False) if g.strip()]
        u, v = (embed([" ".join(p[k].split()) for p, _ in rows]).numpy() for k in (0, 1))
        cosines = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
        gold = [g for _, g in rows]
        every += list(zip(cosines, gold, strict=True))
        figures.append(100 * stats.spearmanr(cosines, gold).statistic)
        sizes.append(len(rows))
    assert sum(sizes) == 3108
    assert result["spearman"] == round(100 * stats.spearmanr(*zip(*every, strict=True)).statistic, 2)
    assert result["mean"] == round(np.mean(figures), 2)
    assert result["weighted_mean"] == round(np.average(figures, weights=sizes), 2)
