"""Measures against loops in fp64."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from dystress_text.adaptation import measures
from dystress_text.adaptation.measures import geometry, measure, ranks
from dystress_text.adaptation.probes import make_probes
from dystress_text.adaptation.split import HeldOut
from dystress_text.errors import UserError

rng = np.random.default_rng(0)


def unit(*shape):
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def rank_by_loop(query, gallery, right, own):
    right = [j for j in right if j >= 0]
    best = max(float(query @ gallery[j]) for j in right)
    others = [float(query @ gallery[j]) for j in range(len(gallery)) if j not in right and j != own]
    return 1 + sum(s > best + 1e-6 for s in others) + sum(abs(s - best) <= 1e-6 for s in others) / 2


@pytest.mark.parametrize("entries", [2**22, 100])  # all at once, and two rows at a time
def test_ranks_are_those_of_a_loop(entries, monkeypatch):
    monkeypatch.setattr(measures, "_ENTRIES", entries)
    queries, gallery = unit(30, 4), unit(50, 4)
    gallery[40:] = gallery[:10]  # equal ones
    gallery[20:30] = queries[:10]  # a query's own text
    right = np.stack([rng.permutation(20)[:2] for _ in range(30)])
    right[::3, 0] = -1
    own = np.where(np.arange(30) < 10, np.arange(20, 50), -1)
    found = ranks(torch.from_numpy(queries), torch.from_numpy(gallery), right, own)
    expected = [rank_by_loop(queries[i], gallery, right[i], own[i]) for i in range(30)]
    assert found.tolist() == expected
    assert any(rank % 1 for rank in expected)


def test_a_collapsed_model_gets_middle_ranks():
    same = torch.ones(5, 3, dtype=torch.float64)
    assert ranks(same[:1], same, np.array([[2]]), np.array([-1])).tolist() == [3]


@pytest.mark.parametrize("entries", [2**22, 100])
def test_geometry_is_that_of_all_pairs(entries, monkeypatch):
    monkeypatch.setattr(measures, "_ENTRIES", entries)
    x = unit(40, 3)
    uniform, cosine = geometry(torch.from_numpy(x))
    distances = pdist(x)
    assert uniform.mean() == pytest.approx(np.log(np.exp(-2 * distances**2).mean()), abs=1e-12)
    assert cosine.mean() == pytest.approx(np.abs(1 - distances**2 / 2).mean(), abs=1e-12)


def test_the_spread_of_values_is_that_of_the_figure():
    """The standard error from the values equals the deviation of the figure over fresh samples."""
    drawn = []
    for _ in range(400):
        x = rng.normal((1.5, 0, 0), size=(100, 3))
        drawn.append(geometry(torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True))))
    for values in map(np.array, zip(*drawn, strict=True)):  # (400, 100)
        predicted = values.std(axis=1).mean() / 10
        assert predicted == pytest.approx(values.mean(axis=1).std(), rel=0.15)


def bag_of_words(texts):
    """A random vector a word, added up."""
    words = [[np.random.default_rng(list(word.encode())).normal(size=64) for word in text.split()] for text in texts]
    return torch.tensor(np.array([sum(vectors) for vectors in words]), dtype=torch.float32)


def test_all_measures_of_a_model():
    sentences = tuple(" ".join(f"w{i * 5 + j}" for j in range(10)) for i in range(12))
    held_out = HeldOut(sentences, np.arange(12), np.arange(12) // 4)
    pairs = [(sentences[0], sentences[1]), (sentences[2], "w0 w1"), (sentences[3], sentences[3])]
    calls = []
    probes = make_probes(held_out, "documents", 0, pairs)
    found = measure(probes, lambda texts: calls.append(len(texts)) or bag_of_words(texts))
    assert calls == [len(set(probes.texts))] == [len(probes.texts)]
    assert found.values["halves"].values.shape == (12,)
    vectors = {text: v / v.norm() for text, v in zip(probes.texts, bag_of_words(probes.texts).double(), strict=True)}
    assert found.general.tolist() == pytest.approx([float(vectors[a] @ vectors[b]) for a, b in pairs], abs=1e-12)
    near, cut = probes.probes[:2]
    assert (near.name, cut.name) == ("neighbours", "halves")
    gallery = [vectors[g] for g in near.gallery]
    rank = [rank_by_loop(vectors[q], gallery, near.right[i], near.own[i]) for i, q in enumerate(near.queries)]
    assert max(rank) > 1
    assert found.values["neighbours"].values.tolist() == pytest.approx([1 / r for r in rank])
    distance = [float((vectors[a] - vectors[b]).square().sum()) for a, b in zip(cut.queries, cut.gallery, strict=True)]
    assert found.values["halves alignment"].values.tolist() == pytest.approx(distance, abs=1e-12)
    rank = [rank_by_loop(vectors[q], [vectors[g] for g in cut.gallery], [i], -1) for i, q in enumerate(cut.queries)]
    assert found.values["halves"].values.tolist() == pytest.approx([1 / r for r in rank])
    assert found.values["halves log rank"].values.tolist() == pytest.approx([-math.log2(r) for r in rank])


def test_a_useless_model_is_refused():
    probes = make_probes(HeldOut(("a b c d", "e f g h"), np.arange(2), np.arange(2)), "lines", 0, [])
    with pytest.raises(UserError, match="NaN"):
        measure(probes, lambda texts: torch.full((len(texts), 2), torch.nan))
    with pytest.raises(UserError, match="same vector"):
        measure(probes, lambda texts: torch.ones(len(texts), 2))
