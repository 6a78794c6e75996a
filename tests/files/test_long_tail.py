"""Long-tailed subsets: exact counts, a choice that never changes, and index files that are held against the labels."""

import hashlib
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.errors import DataError, UserError
from dystress_text.files.long_tail import LongTail, long_tail_counts, long_tail_indices, read_long_tail, write_long_tail

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 50))


def subset_of(labels, ratio=0.1, seed=3):
    return LongTail("toy", ratio, seed, long_tail_indices(labels, ratio, seed))


@pytest.mark.parametrize(("n_max", "classes", "total"), [(5000, 10, 12_406), (500, 100, 10_847)])
def test_totals_are_those_of_the_paper(n_max, classes, total):
    counts = long_tail_counts(n_max, classes)
    assert sum(counts) == total
    assert (counts[0], counts[-1]) == (n_max, n_max // 100)


def test_counts_that_are_whole_are_not_rounded_down():
    assert long_tail_counts(500, 2, 0.07) == [500, 35]
    assert math.floor(100 * 0.29) == 28  # what a float makes of it
    assert long_tail_counts(100, 2, 0.29) == [100, 29]
    assert math.floor(5000 * 0.729 ** (2 / 3)) == 4049
    assert long_tail_counts(5000, 4, 0.729) == [5000, 4500, 4050, 3645]
    assert long_tail_counts(100_000, 6, 1e-5) == [100_000, 10_000, 1000, 100, 10, 1]
    assert long_tail_counts(10**18 - 1, 2, 1.0) == [10**18 - 1] * 2  # a float makes 10**18 of it
    assert all(long_tail_counts(100 * n, classes)[-1] == n for n in range(1, 60) for classes in (2, 3, 10, 100))


@given(st.integers(1, 3000), st.integers(2, 30), st.integers(1, 1000))
def test_counts_are_the_floor_of_the_formula(n_max, classes, thousandths):
    ratio = Fraction(thousandths, 1000)
    if n_max * ratio < 1:
        with pytest.raises(UserError, match="no image of the last class"):
            long_tail_counts(n_max, classes, thousandths / 1000)
        return
    for i, count in enumerate(long_tail_counts(n_max, classes, thousandths / 1000)):
        power = Fraction(n_max) ** (classes - 1) * ratio**i
        assert count ** (classes - 1) <= power < (count + 1) ** (classes - 1)


def test_a_single_class_is_kept_whole():
    assert long_tail_counts(7, 1) == [7]
    assert long_tail_counts(7, 3, 1.0) == [7, 7, 7]


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.1, math.nan, math.inf])
def test_a_ratio_outside_its_range_is_refused(ratio):
    with pytest.raises(UserError, match="must be above 0 and at most 1"):
        long_tail_counts(500, 10, ratio)


def test_no_class_is_refused():
    with pytest.raises(UserError, match="at least one class"):
        long_tail_counts(500, 0)


SAME_FOR_EVER = {  # of version 0.1's choices, by images, classes, ratio and seed
    (50_000, 10, 0.01, 0): "80ff317560e7170425dac3f73b121b8d385a22b1342de4f279268a2133725c71",
    (50_000, 100, 0.01, 0): "5cb56d20d4d6ef76ab4e4a467c8d60a15f05073f6d33d0a15e04b273fa65b2ce",
    (50_000, 100, 0.01, 1): "0c5ddf4589014aeb665e9bcada1c16f6f075fff859139fd02bc02a34840a08e5",
    (50_000, 10, 0.02, 7): "c00ccf63202471b31f29785f759b9c8b47d7a63ee31a140a7cf52e917e0e3f1d",
    (2_000, 10, 0.1, -5): "3ddb24b04b70e2b1ca18789f954f63fae6bf729fe639801f94116d4b0a305b7e",
}


@pytest.mark.parametrize("choice", SAME_FOR_EVER)
def test_the_choice_never_changes(choice):
    images, classes, ratio, seed = choice
    for dtype in ("<i8", ">u2"):
        indices = long_tail_indices((np.arange(images) % classes).astype(dtype), ratio, seed)
        assert indices.dtype == np.int64
        assert hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest() == SAME_FOR_EVER[choice]


def test_a_file_of_version_0_1_is_written_and_read_as_it_was(tmp_path):
    labels = np.repeat(np.arange(4), 50)
    write_long_tail(tmp_path / "toy.txt", subset_of(labels), labels)
    digest = hashlib.sha256((tmp_path / "toy.txt").read_bytes()).hexdigest()
    assert digest == "662dc9230ff31bf6b94ea9f7f9cd2a68d32c3ff52243d758212f0e00767acd74"


def test_indices_are_ascending_and_of_the_right_classes():
    indices = long_tail_indices(LABELS, 0.1, 3)
    assert (np.diff(indices) > 0).all()
    assert np.bincount(LABELS[indices]).tolist() == long_tail_counts(50, 4, 0.1) == [50, 23, 10, 5]


def test_seeds_differ_and_ratios_nest():
    first, second = long_tail_indices(LABELS, 0.1, 3), long_tail_indices(LABELS, 0.1, 4)
    assert not np.array_equal(first, second)
    assert set(first.tolist()) < set(long_tail_indices(LABELS, 0.5, 3).tolist())


def test_every_image_has_the_same_chance():
    last = np.flatnonzero(LABELS == 3)
    drawn = [i for seed in range(400) for i in long_tail_indices(LABELS, 0.2, seed) if LABELS[i] == 3]
    times = np.bincount(drawn, minlength=200)[last]  # expected 80 each, standard deviation 8
    assert 40 < times.min() <= times.max() < 120


def test_the_smallest_class_is_the_measure_where_sizes_differ():
    labels = np.array([0] * 3 + [1] * 10)
    assert np.bincount(labels[long_tail_indices(labels, 0.5)]).tolist() == [3, 1]


@pytest.mark.parametrize(
    "labels",
    [np.zeros((2, 2), dtype=int), np.array([], dtype=int), np.array([0.0, 1.0]), np.array([-1, 0]), np.array([0, 0, 2]),
     np.array([0, 1 << 60])],
    ids=["matrix", "empty", "floats", "negative", "a class without images", "a class beyond all images"],
)  # fmt: skip
def test_bad_labels_are_refused(labels):
    with pytest.raises(DataError, match="labels"):
        long_tail_indices(labels)


def test_a_file_holds_the_subset(tmp_path):
    subset = subset_of(LABELS)
    write_long_tail(tmp_path / "toy.txt", subset, LABELS)
    checksum = hashlib.sha256(b"".join(int(label).to_bytes(8, "little") for label in LABELS)).hexdigest()
    lines = (tmp_path / "toy.txt").read_text().splitlines()
    assert lines[0] == f"# long-tail dataset=toy ratio=0.1 seed=3 labels_sha256={checksum}"
    assert lines[1:] == [str(i) for i in subset.indices]
    read = read_long_tail(tmp_path / "toy.txt", LABELS.astype(np.int32))
    assert (read.dataset, read.ratio, read.seed) == ("toy", 0.1, 3)
    assert np.array_equal(read.indices, subset.indices)
    assert [file.name for file in tmp_path.iterdir()] == ["toy.txt"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [], "line 1: not the header"),
        (lambda lines: lines[1:], "line 1: not the header"),
        (lambda lines: [lines[0].replace("seed=3", "seed=x"), *lines[1:]], "line 1: not the header"),
        (lambda lines: [lines[0].replace("ratio=0.1", "ratio=much"), *lines[1:]], "line 1: ratio 'much'"),
        (lambda lines: [lines[0].replace("ratio=0.1", "ratio=nan"), *lines[1:]], "ratio is nan"),
        (lambda lines: [lines[0].replace("ratio=0.1", "ratio=0.2"), *lines[1:]], "does not hold the indices"),
        (lambda lines: [lines[0].replace("seed=3", "seed=4"), *lines[1:]], "does not hold the indices"),
        (lambda lines: [lines[0][:-1] + "z", *lines[1:]], "line 1: not the header"),
        (lambda lines: [lines[0][:-4] + "0000", *lines[1:]], "other labels"),
        (lambda lines: [lines[0], "-1", *lines[2:]], "does not hold the indices"),
        (lambda lines: [lines[0], f"0{lines[1]}", *lines[2:]], "does not hold the indices"),
        (lambda lines: [*lines, "200"], "does not hold the indices"),
        (lambda lines: [*lines, lines[-1]], "does not hold the indices"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "does not hold the indices"),
        (lambda lines: lines[:1], "does not hold the indices"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line(tmp_path, change, words):
    path = tmp_path / "toy.txt"
    write_long_tail(path, subset_of(LABELS), LABELS)
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))
    with pytest.raises(DataError, match=words) as caught:
        read_long_tail(path, LABELS)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    path = tmp_path / "toy.txt"
    write_long_tail(path, subset_of(LABELS), LABELS)
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError):
            read_long_tail(path, LABELS)


@given(st.data())
def test_a_damaged_file_is_refused_or_holds_the_choice(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "toy.txt"
    write_long_tail(path, subset_of(LABELS), LABELS)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        read = read_long_tail(path, LABELS)
    except DataError:
        return
    assert np.array_equal(read.indices, long_tail_indices(LABELS, read.ratio, read.seed))


def test_other_labels_are_noticed(tmp_path):
    write_long_tail(tmp_path / "toy.txt", subset_of(LABELS), LABELS)
    other = LABELS.copy()
    other[[0, 1]] = (LABELS[0] + 1) % 4, LABELS[1]
    with pytest.raises(DataError, match="other labels"):
        read_long_tail(tmp_path / "toy.txt", other)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*: No such file"):
        read_long_tail(tmp_path / "none.txt", LABELS)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="byte 3 is not ASCII"):
        read_long_tail(tmp_path / "latin.txt", LABELS)


def test_files_that_cannot_be_written(tmp_path):
    subset = subset_of(LABELS)
    (tmp_path / "file").write_text("")
    for parent in ("none", "file"):
        with pytest.raises(UserError, match="cannot write"):
            write_long_tail(tmp_path / parent / "toy.txt", subset, LABELS)
    for bad in (replace(subset, dataset="a b"), replace(subset, dataset="a\nb"), replace(subset, seed=10**18)):
        with pytest.raises(UserError, match="a name has letters"):
            write_long_tail(tmp_path / "toy.txt", bad, LABELS)
    with pytest.raises(DataError, match=r"not those of ratio 0\.2 and seed 3"):
        write_long_tail(tmp_path / "toy.txt", replace(subset, ratio=0.2), LABELS)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
