"""What is held out: whole units, no near copies in training, the same for the same seed."""

from array import array

import numpy as np
import pytest
from conftest import make_sentences
from test_near_copies import similarity

from dystress_text.adaptation import split
from dystress_text.adaptation.split import HeldOut, documents_of, held_out_count, read_text, split_text, structure_of
from dystress_text.errors import UserError
from dystress_text.simcse.corpus import TextFile

ONE = np.zeros(600, dtype=np.int64)


def topics(n, size):
    """Sentences whose neighbours share a made-up name, a topic after another."""
    rng = np.random.default_rng(0)
    names = rng.integers(2**32, size=(n, 3))
    return [f"{own:x} has {other:x} of {names[i // size, 2]:x}" for i, (own, other, _) in enumerate(names.tolist())]


def test_documents_are_told_by_line_numbers(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("a b\nc d\n\ne f\n \n\ng h\ni j\n")
    sentences, documents = read_text(TextFile(file))
    assert sentences == ["a b", "c d", "e f", "g h", "i j"]
    assert documents.tolist() == [0, 0, 1, 2, 2]
    assert documents_of(array("q")).tolist() == []


def test_the_structure_of_a_text():
    running, loose = topics(600, 12), make_sentences(600)
    assert structure_of(loose, ONE, 0) == "lines"
    assert structure_of(running, ONE, 0) == "blocks"
    by_topic = [" ".join(reversed(sentence.split())) for sentence in running]
    assert structure_of(by_topic, ONE, 0) == "blocks"
    assert structure_of(sorted(by_topic), ONE, 0) == "lines"  # alike because they are sorted
    assert structure_of(loose, np.arange(600) // 6, 0) == "documents"
    assert structure_of(loose, np.arange(600), 0) == "lines"  # a blank line behind every sentence


@pytest.mark.parametrize("structure", ["documents", "blocks", "lines"])
def test_whole_units_are_held_out(structure):
    sentences = make_sentences(600) if structure == "lines" else topics(600, 12)
    documents = np.repeat(np.arange(150), 4) if structure == "documents" else ONE
    found = split_text(sentences, documents, 3)
    assert found.structure == structure
    held_out = found.held_out
    assert list(held_out.sentences) == [sentences[i] for i in held_out.places]
    left = np.delete(np.arange(600), np.union1d(found.train, held_out.places))
    assert len(left) == found.left_out
    assert 150 < len(held_out.sentences) + found.left_out <= 200
    sizes = {"documents": 4, "blocks": 5, "lines": 1}
    for unit in np.unique(held_out.units):  # a unit's lines follow each other, and none is trained on
        first = held_out.places[held_out.units == unit][0] // sizes[structure] * sizes[structure]
        assert not np.isin(np.arange(first, first + sizes[structure]), found.train).any()
    again, other = split_text(sentences, documents, 3), split_text(sentences, documents, 4)
    assert (again.train == found.train).all()
    assert (again.held_out.units == held_out.units).all()
    assert other.train.tolist() != found.train.tolist()


def test_no_near_copy_is_on_both_sides():
    sentences = make_sentences(600)
    for i in range(0, 300, 2):
        sentences[i] = sentences[599 - i].upper() + "."
    found = split_text(sentences, ONE, 0)
    assert found.left_out > 20
    ours, train = found.held_out.sentences, [sentences[i] for i in found.train]
    assert max(similarity(a, b) for a in ours[:60] for b in train) < 0.7
    assert max(similarity(a, b) for i, a in enumerate(ours) for b in ours[:i]) < 0.7
    with pytest.raises(UserError, match="too alike to measure on: of 200 that were held out, 200 are near copies"):
        split_text(["all the same"] * 600, np.arange(600), 0)


def test_long_documents_are_cut_in_even_pieces():
    units = split._units("documents", np.repeat([4, 7], [7, 2]), 3, 9)
    assert units.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]


def test_how_many_are_held_out():
    assert [held_out_count(n) for n in (300, 500, 5_000, 10**6)] == [150, 200, 1_000, 2_000]


def test_parts_share_no_unit():
    units = np.arange(100) // 5
    whole = HeldOut(tuple(map(str, range(100))), np.arange(100), units)
    first, second = whole.parts(0)
    assert sorted([*first.places, *second.places]) == list(range(100))
    assert (len(set(first.units)), len(set(second.units))) == (7, 13)
    assert not set(first.units) & set(second.units)
    assert list(first.sentences) == [str(i) for i in first.places]
