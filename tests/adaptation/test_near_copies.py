"""Near copies, against sets compared pair by pair."""

import random
from functools import cache

import numpy as np
from conftest import WORDS

from dystress_text.adaptation import near_copies
from dystress_text.adaptation.near_copies import jaccard, normalized, repeats, with_near_copy


def sentences_with_copies(n, seed):
    """Random sentences, half of them changed in one word or in case and punctuation."""
    rng = random.Random(seed)
    found = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(n)]
    for i in range(0, n, 2):
        words = rng.choice(found).split()
        words[rng.randrange(len(words))] = rng.choice(WORDS)
        found[i] = rng.choice((" ".join(words), " ".join(words).upper() + " ?!"))
    return found


@cache
def members(sentence):
    text = f" {normalized(sentence)} ".ljust(5)
    return {text[i : i + 5] for i in range(len(text) - 4)}


def similarity(a, b):
    return len(members(a) & members(b)) / len(members(a) | members(b))


def test_near_copies_are_those_of_all_pairs(monkeypatch):
    monkeypatch.setattr(near_copies, "_FIRST", 16)  # several parts
    ours, others = sentences_with_copies(60, 0), sentences_with_copies(200, 1)
    others[3], others[5] = "?!", "你好"
    ours[3], ours[4] = "?!", "你好"
    for share in (0.4, 0.7, 1.0):
        similar = [[similarity(a, b) >= share for b in others] for a in ours]
        found = with_near_copy(ours, iter(others), share)
        assert 0 < found.sum() < len(ours)
        assert (found == np.any(similar, axis=1)).all()
        earlier = [any(similarity(others[i], others[j]) >= share for j in range(i)) for i in range(120)]
        assert (repeats(others[:120], share) == earlier).all()


def test_a_repeat_of_an_earlier_part_is_found():
    distinct = [f"{i:x} {i * 7919:x} {i * 104729:x} {i * 15485863:x}" for i in range(700)]
    found = repeats([*distinct, *distinct[:3]])
    assert found.nonzero()[0].tolist() == [700, 701, 702]
    assert repeats([]).tolist() == []


def test_jaccard_is_that_of_the_sets():
    first, second = sentences_with_copies(50, 2), sentences_with_copies(50, 3)
    second[:3] = first[:3]
    expected = [similarity(a, b) for a, b in zip(first, second, strict=True)]
    assert np.allclose(jaccard(first, second), expected, atol=1e-15)


def test_case_punctuation_and_width_do_not_matter():
    assert normalized("  The CAT,  sat\u3000\uff11! ") == "the cat sat 1"
    assert normalized(" ?! ") == "?!"
