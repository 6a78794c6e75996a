"""STS files and scores, against SciPy and plain loops."""

import math
import zlib

import numpy as np
import pytest
import torch
from conftest import make_sentences
from model_cases import model_of
from scipy import stats

from dystress_text.errors import DataError
from dystress_text.evaluation.catalogue import STS_SETS, StsTask
from dystress_text.evaluation.embedder import TextEncoder
from dystress_text.evaluation.readers import StsPairs, read_sts_benchmark, read_sts_subset
from dystress_text.evaluation.sts import (
    evaluate_pairs,
    evaluate_sts_task,
    score_vectors,
    spearman,
)
from dystress_text.io.paths import EMBEDDED


def arbitrary_vectors(sentences):
    """Return a random vector for each sentence, so that no two cosines are equal."""
    seeds = [zlib.crc32(sentence.encode()) for sentence in sentences]
    return torch.stack(
        [torch.randn(8, generator=torch.Generator().manual_seed(s)).double() for s in seeds]
    )


def encoder(embed):
    """Return an encoder for a function from texts to vectors (n, dim)."""
    return TextEncoder(model_of(embed))


def test_scores_equal_a_literal_computation():
    pairs = read_sts_benchmark(EMBEDDED / "senteval/STS/MiniSTS/mini-sts.csv")
    result = score_vectors(pairs, arbitrary_vectors(pairs.sentences))
    a, b = arbitrary_vectors(pairs.first).numpy(), arbitrary_vectors(pairs.second).numpy()
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert result.spearman == pytest.approx(
        100 * stats.spearmanr(cosines, pairs.scores).statistic, abs=1e-6
    )
    positive = pairs.scores > 4
    assert result.alignment == pytest.approx(np.mean(2 - 2 * cosines[positive]), abs=1e-9)
    task = evaluate_sts_task(
        STS_SETS["mini_sts"], EMBEDDED / "senteval", encoder(arbitrary_vectors)
    )
    assert task["spearman"] == task["mean"] == round(result.spearman, 2)
    distinct = arbitrary_vectors(pairs.sentences).numpy()
    units = distinct / np.linalg.norm(distinct, axis=1, keepdims=True)
    gram = units @ units.T
    off = ~np.eye(len(units), dtype=bool)
    assert result.uniformity == pytest.approx(
        math.log(np.exp(-2 * (2 - 2 * gram[off])).mean()), abs=1e-9
    )


def test_constant_values_have_no_correlation():
    x = np.array([1.0, 2.0, 3.0])
    assert math.isnan(spearman(np.ones(3), x))
    assert math.isnan(spearman(np.array([1.0, np.nan, 2.0]), x))


@pytest.mark.parametrize("angle", [0.0, 1.1])
def test_similarities_that_differ_by_rounding_are_ties(angle):
    """In fp32 the vectors of one text in several batches differ."""
    draw = np.random.default_rng(0)
    texts = [f"text {i}" for i in range(80)]
    pairs = StsPairs(tuple(texts[:40]), tuple(texts[40:]), draw.normal(size=40))
    plane = np.linalg.qr(draw.normal(size=(256, 2)))[0].T  # (2, 256)

    def vectors(angles):
        exact = np.cos(angles)[:, None] * plane[0] + np.sin(angles)[:, None] * plane[1]
        noisy = exact * (1 + 1e-7 * draw.normal(size=exact.shape))
        return torch.tensor(noisy * draw.uniform(1, 30, (len(exact), 1))).float()

    one_angle = vectors(np.repeat([0.0, angle], 40))
    assert math.isnan(score_vectors(pairs, one_angle).spearman)
    by_text = dict(zip(texts, one_angle, strict=True))
    with pytest.raises(DataError, match="same similarity"):
        evaluate_pairs(pairs, encoder(lambda of: torch.stack([by_text[text] for text in of])))
    some = np.where(np.arange(40) % 4 == 0, 0.5, angle)
    found = score_vectors(pairs, vectors(np.concatenate([np.zeros(40), some]))).spearman
    expected = stats.spearmanr(-some, pairs.scores).statistic
    assert found == pytest.approx(100 * expected, abs=1e-9)


def test_only_line_feeds_end_lines(tmp_path):
    file = tmp_path / "sts.csv"
    lines = 'g\tf\ty\t1\t3.5\t"An  odd\u2028line\tsecond\textra\ng\tf\ty\t2\t0\tthird\tfourth\r\n'
    file.write_bytes(lines.encode())
    pairs = read_sts_benchmark(file)
    assert (pairs.first, pairs.second) == (('"An odd line', "third"), ("second", "fourth"))
    assert pairs.scores.tolist() == [3.5, 0.0]


def test_pairs_without_scores_are_dropped(tmp_path):
    (tmp_path / "inputs").write_text("a\tb\nc\td\te\nf\tg\n")
    (tmp_path / "golds").write_text("1.5\n\n2\tx\n")
    pairs = read_sts_subset(tmp_path / "inputs", tmp_path / "golds")
    assert (pairs.first, pairs.second) == (("a", "f"), ("b", "g"))
    assert pairs.scores.tolist() == [1.5, 2.0]


def test_subsets_are_scored_together_and_alone(tmp_path):
    draw = np.random.default_rng(0)
    texts = make_sentences(96)
    subsets = {
        "one": StsPairs(tuple(texts[:30]), tuple(texts[30:60]), draw.random(30)),
        "two": StsPairs(tuple(texts[60:78]), tuple(texts[78:]), draw.random(18)),
    }
    parts = {name: (len(pairs), name) for name, pairs in subsets.items()}
    task = StsTask("YEAR", lambda file: subsets[file.name], parts, "YEAR")
    result = evaluate_sts_task(task, tmp_path, encoder(arbitrary_vectors))
    scores = [pairs.scores for pairs in subsets.values()]
    cosines = []
    for pairs in subsets.values():
        sides = (arbitrary_vectors(side) for side in (pairs.first, pairs.second))
        cosines.append(torch.cosine_similarity(*sides).numpy())
    figures = [100 * stats.spearmanr(*both).statistic for both in zip(cosines, scores, strict=True)]
    together = stats.spearmanr(np.concatenate(cosines), np.concatenate(scores)).statistic
    assert result["spearman"] == round(100 * together, 2)
    assert result["mean"] == round(np.mean(figures), 2)
    assert result["weighted_mean"] == round(np.average(figures, weights=[30, 18]), 2)
