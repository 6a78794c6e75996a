"""STS files and scores, against SciPy and plain loops, on hostile files and on the real ones."""

import math
import zlib

import numpy as np
import pytest
import torch
from scipy import stats

from dystress_text.errors import UserError
from dystress_text.evaluation.readers import StsPairs, concatenate, read_sick, read_sts_benchmark, read_sts_year
from dystress_text.evaluation.sts import evaluate_sts, score_vectors, spearman
from dystress_text.files.places import EMBEDDED


def arbitrary_vectors(sentences):
    """A deterministic embedder: each sentence has a random vector of its own, so that no two cosines tie."""
    seeds = [zlib.crc32(sentence.encode()) for sentence in sentences]
    return torch.stack([torch.randn(8, generator=torch.Generator().manual_seed(s)).double() for s in seeds])


def test_scores_are_those_of_a_literal_computation():
    pairs = read_sts_benchmark(EMBEDDED / "senteval/STS/MiniSTS/mini-sts.csv", "mini-STS")
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
    pairs = StsPairs("x", ("a b", "c", "a b"), ("c", "d", "e"), np.array([1.0, 2.0, 5.0]))
    asked = []
    evaluate_sts(pairs, lambda s: asked.extend(s) or arbitrary_vectors(s))
    assert sorted(asked) == ["a b", "c", "d", "e"]


def test_constant_or_missing_numbers_have_no_correlation():
    x = np.array([1.0, 2.0, 3.0])
    assert spearman(x, x) == pytest.approx(100)
    assert math.isnan(spearman(np.ones(3), x))
    assert math.isnan(spearman(np.array([1.0, np.nan, 2.0]), x))
    pairs = StsPairs("x", ("a", "b", "c"), ("d", "e", "f"), x)
    assert math.isnan(score_vectors(pairs, torch.ones(6, 4)).spearman)
    assert math.isnan(score_vectors(pairs, torch.full((6, 4), torch.nan)).spearman)


def test_the_embedded_set_is_as_described():
    pairs = read_sts_benchmark(EMBEDDED / "senteval/STS/MiniSTS/mini-sts.csv", "mini-STS")
    assert len(pairs) >= 250
    assert len(pairs.sentences) == 2 * len(pairs)
    assert pairs.scores.min() >= 0
    assert pairs.scores.max() <= 5
    bands = np.histogram(pairs.scores, [0, 0.5, 1.5, 2.5, 3.5, 4.5, 5.01])[0]
    assert bands.min() > 0.7 * bands.max()

    def overlap(a, b):
        return len(set(a.lower().split()) & set(b.lower().split())) / len(
            set(a.lower().split()) | set(b.lower().split())
        )

    overlaps = np.array([overlap(a, b) for a, b in zip(pairs.first, pairs.second, strict=True)])
    assert ((overlaps > 0.4) & (pairs.scores <= 2)).sum() > 40
    assert ((overlaps < 0.2) & (pairs.scores >= 4)).sum() > 40


def test_lines_of_the_benchmark_are_split_at_line_feeds_and_tabs_alone(tmp_path):
    file = tmp_path / "sts.csv"
    file.write_bytes('g\tf\ty\t1\t3.5\t"An  odd\u2028line\tsecond\textra\ng\tf\ty\t2\t0\tthird\tfourth\r\n'.encode())
    pairs = read_sts_benchmark(file)
    assert pairs.first == ('"An odd line', "third")
    assert pairs.second == ("second", "fourth")
    assert pairs.scores.tolist() == [3.5, 0.0]


def test_unscored_pairs_of_a_year_are_dropped(tmp_path):
    for subset, gold in {"FNWN": "1\n\n3\n", "headlines": "4.5\n2\n1\n", "OnWN": "\n\n0\n"}.items():
        (tmp_path / f"STS.input.{subset}.txt").write_text("a b\tc\nd\te\nf\tg\n")
        (tmp_path / f"STS.gs.{subset}.txt").write_text(gold)
    subsets = read_sts_year(tmp_path, "STS13")
    assert [len(s) for s in subsets.values()] == [2, 3, 1]
    whole = concatenate("STS13", list(subsets.values()))
    assert whole.scores.tolist() == [1, 3, 4.5, 2, 1, 0]
    assert whole.first == ("a b", "f", "a b", "d", "f", "f")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"a\tb\n", "line 1: 7 tab-separated columns"),
     (b"a\tb\tc\td\thigh\tx\ty\n", "'high' is not a score"), (b"a\tb\tc\td\tnan\tx\ty\n", "not finite"),
     (b"a\tb\tc\td\t1\t\xff\ty\n", "not UTF-8")],
)  # fmt: skip
def test_damaged_files_name_the_place(tmp_path, content, words):
    file = tmp_path / "sts.csv"
    file.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_sts_benchmark(file)
    assert str(file) in str(caught.value)


def test_files_of_different_length_or_absent(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_sts_year(tmp_path, "STS13")
    for subset in ("FNWN", "headlines", "OnWN"):
        (tmp_path / f"STS.input.{subset}.txt").write_text("a\tb\nc\td\n")
        (tmp_path / f"STS.gs.{subset}.txt").write_text("1\n")
    with pytest.raises(UserError, match=r"2 lines and .* has 1"):
        read_sts_year(tmp_path, "STS13")


def test_real_files_have_the_protocols_counts(shared):
    senteval = shared / "data" / "senteval"
    for split, count in {"train": 5749, "dev": 1500, "test": 1379}.items():
        assert len(read_sts_benchmark(senteval / f"STS/STSBenchmark/sts-{split}.csv")) == count
    for split, count in {"train": 4500, "trial": 500, "test_annotated": 4927}.items():
        assert len(read_sick(senteval / f"SICK/SICK_{split}.txt")) == count
    assert sum(len(s) for s in read_sts_year(senteval / "STS/STS12-en-test", "STS12").values()) == 3108
    assert len(read_sts_benchmark(senteval / "STS/STSBenchmark/sts-dev.csv").sentences) == 2909
