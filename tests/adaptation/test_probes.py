"""What is asked: which text finds which."""

import numpy as np

from dystress_text.adaptation.probes import dropped, general_pairs, in_two, make_probes, truncated
from dystress_text.adaptation.split import HeldOut

SENTENCES = ("one two three four five, six seven eight nine", "a b c d e f g h i", "x y z", "p q r s", "l m n o p")
HELD_OUT = HeldOut(SENTENCES, np.array([3, 4, 5, 8, 9]), np.array([1, 1, 2, 2, 2]))


def test_a_sentence_is_cut_near_its_middle():
    assert in_two(SENTENCES[0]) == ("one two three four five,", "six seven eight nine")
    assert in_two(SENTENCES[1]) == ("a b c d", "e f g h i")
    assert in_two("a, b c d e f g h i") == ("a, b c d", "e f g h i")  # too far from the middle
    assert in_two("a b c, d e f, g h i") == ("a b c,", "d e f, g h i")
    assert in_two("a b c d e f g") is None
    assert in_two("今天天气很好\uff0c我们去公园散步了") == ("今天天气很好\uff0c", "我们去公园散步了")


def test_words_are_left_out_by_seed_and_sentence():
    words = SENTENCES[1].split()
    for seed in range(5):
        kept = dropped(SENTENCES[1], seed).split()
        assert len(kept) == 4
        assert kept == [word for word in words if word in kept]  # in their order
    assert dropped(SENTENCES[1], 4) == " ".join(kept)
    assert len({dropped(SENTENCES[1], seed) for seed in range(9)}) > 3
    assert truncated(SENTENCES[1]) == "a b c d"
    assert dropped("x y z", 0) is None
    assert truncated("x y z") is None


def test_each_query_has_its_answer():
    firsts = ("a b c d e f g h", "i j k l", "m n o p")
    general = [(first, "u v") for first in firsts]
    probes = {probe.name: probe for probe in make_probes(HELD_OUT, "blocks", 0, general).all}
    assert set(probes) == {"neighbours", "halves", "dropped words", "truncation", "general dropped words"}
    near = probes["neighbours"]
    asked = {near.queries[i]: {near.gallery[j] for j in near.right[i] if j >= 0} for i in range(len(near.queries))}
    assert asked == {  # the third follows the second in the text, but in another unit; the fourth begins behind a gap
        SENTENCES[0]: {SENTENCES[1]}, SENTENCES[1]: {SENTENCES[0]}, SENTENCES[3]: {SENTENCES[4]},
        SENTENCES[4]: {SENTENCES[3]},
    }  # fmt: skip
    assert [near.gallery[i] for i in near.own] == list(near.queries)
    assert near.units.tolist() == [1, 1, 2, 2]
    for name, change in (("truncation", truncated), ("dropped words", lambda sentence: dropped(sentence, 0))):
        probe = probes[name]
        assert [probe.gallery[i] for (i,) in probe.right] == [SENTENCES[i] for i in (0, 1, 3, 4)]
        assert list(probe.queries) == [change(SENTENCES[i]) for i in (0, 1, 3, 4)]
    cut = probes["halves"]
    assert [f"{first} {cut.gallery[i]}" for first, (i,) in zip(cut.queries, cut.right, strict=True)] == [*SENTENCES[:2]]
    kept = probes["general dropped words"]
    assert kept.queries == tuple(dropped(first, 0) for first in firsts)
    assert tuple(kept.gallery[i] for (i,) in kept.right) == firsts
    assert not set(kept.units) & set(HELD_OUT.units)  # a bootstrap draws them apart


def test_no_neighbours_without_structure():
    names = [probe.name for probe in make_probes(HELD_OUT, "lines", 0, []).all]
    assert names == ["halves", "dropped words", "truncation"]


def test_general_pairs_are_the_embedded_ones():
    assert len(general_pairs()) == 526
    assert all(isinstance(sentence, str) for pair in general_pairs() for sentence in pair)
