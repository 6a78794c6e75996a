"""STS files and scores, against SciPy and plain loops."""

import math

import numpy as np
import pytest
import torch
from model_cases import model_of
from scipy import stats
from search_cases import random_vectors

from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.evaluation.evaluators import PairsEvaluator
from dystress_text.evaluation.sts import score_vectors, spearman
from dystress_text.evaluation.text_encoder import TextEncoder
from dystress_text.evaluation.text_sets import read_sts_benchmark, read_sts_subset


def test_scores_equal_a_literal_computation():
    pairs = eval_pairs("mini_sts")
    vectors = random_vectors(pairs.sentences).double()
    result = score_vectors(pairs, vectors)
    first = random_vectors(pairs.first).double()
    second = random_vectors(pairs.second).double()
    cosines = torch.cosine_similarity(first, second).numpy()
    expected = 100 * stats.spearmanr(cosines, pairs.scores).statistic
    assert result["spearman"] == pytest.approx(expected, abs=1e-4)
    aligned = np.mean(2 - 2 * cosines[pairs.scores > 4])
    assert result["alignment"] == pytest.approx(aligned, abs=1e-9)
    distances = torch.pdist(torch.nn.functional.normalize(vectors, dim=1))
    potential = float(torch.exp(-2 * distances**2).mean())
    assert result["uniformity"] == pytest.approx(math.log(potential), abs=1e-9)
    figures = PairsEvaluator(pairs).figures(TextEncoder(model_of(random_vectors)))
    assert figures["spearman"] == pytest.approx(expected, abs=1e-4)


def test_constant_values_have_no_correlation():
    scores = np.array([1.0, 2.0, 3.0])
    assert math.isnan(spearman(np.ones(3), scores))
    assert math.isnan(spearman(np.array([1.0, np.nan, 2.0]), scores))


def test_similarities_that_differ_by_rounding_are_ties():
    """In fp32 the vectors of one text in several batches differ."""
    draw = np.random.default_rng(0)
    scores = draw.normal(size=40)
    same = np.ones(40) + 1e-7 * draw.normal(size=40)
    assert math.isnan(spearman(same, scores))
    two = np.where(np.arange(40) % 4 == 0, 0.5, 1.0)
    expected = 100 * stats.spearmanr(two, scores).statistic
    noisy = two + 1e-7 * draw.normal(size=40)
    assert spearman(1 - 4e-6 * np.arange(40), -np.arange(40)) == pytest.approx(100)
    assert spearman(np.array([0.1, 0.9]), np.array([0, 1])) == pytest.approx(100)
    for size in (1e-7, 1.0):
        assert spearman(size * noisy, scores) == pytest.approx(expected, abs=1e-9)


def test_only_line_feeds_end_lines(tmp_path):
    file = tmp_path / "sts.csv"
    lines = 'g\tf\ty\t1\t3.5\t"An  odd\u2028line\tsecond\textra\ng\tf\ty\t2\t0\tthird\tfourth\r\n'
    file.write_bytes(lines.encode())
    pairs = read_sts_benchmark(file)
    assert pairs.first == ('"An odd line', "third")
    assert pairs.second == ("second", "fourth")
    assert pairs.scores.tolist() == [3.5, 0.0]


def test_pairs_without_scores_are_dropped(tmp_path):
    (tmp_path / "inputs").write_text("a\tb\nc\td\te\nf\tg\n")
    (tmp_path / "golds").write_text("1.5\n\n2\tx\n")
    pairs = read_sts_subset(tmp_path / "inputs", tmp_path / "golds")
    assert pairs.first == ("a", "f")
    assert pairs.second == ("b", "g")
    assert pairs.scores.tolist() == [1.5, 2.0]
