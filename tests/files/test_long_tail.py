"""Long-tailed subsets: exact counts, a choice that never changes, and index files that are held against the labels."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from fuzz_cases import accepted, inputs, spoiled, spoiled_lines
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.errors import DataError, ParameterError
from dystress_text.files.long_tail import long_tail_counts, long_tail_indices, read_long_tail, write_long_tail

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 50))


@pytest.mark.parametrize(("n_max", "classes", "total"), [(5000, 10, 12_406), (500, 100, 10_847)])
def test_totals_are_those_of_the_paper(n_max, classes, total):
    counts = long_tail_counts(n_max, classes)
    assert sum(counts) == total
    assert (counts[0], counts[-1]) == (n_max, n_max // 100)


@given(st.integers(1, 3000), st.integers(2, 30), st.integers(1, 1000))
def test_counts_are_the_floor_of_the_formula(n_max, classes, thousandths):
    """In fractions, where floats make 28.999... of 100 * 0.29."""
    ratio = Fraction(thousandths, 1000)
    if n_max * ratio < 1:
        with pytest.raises(ParameterError, match="no image of the last class"):
            long_tail_counts(n_max, classes, thousandths / 1000)
        return
    for i, count in enumerate(long_tail_counts(n_max, classes, thousandths / 1000)):
        power = Fraction(n_max) ** (classes - 1) * ratio**i
        assert count ** (classes - 1) <= power < (count + 1) ** (classes - 1)


@pytest.mark.parametrize("ratio", [0.0, 1.1, math.nan])
def test_a_ratio_outside_its_range_is_refused(ratio):
    with pytest.raises(ParameterError, match="ratio: must be above 0 and at most 1"):
        long_tail_counts(500, 10, ratio)


@pytest.mark.parametrize(
    ("images", "classes", "ratio", "seed", "checksum"),
    [(50_000, 10, 0.01, 0, "80ff317560e7170425dac3f73b121b8d385a22b1342de4f279268a2133725c71"),
     (2_000, 10, 0.1, -5, "3ddb24b04b70e2b1ca18789f954f63fae6bf729fe639801f94116d4b0a305b7e")],
)  # fmt: skip
def test_the_choice_never_changes(images, classes, ratio, seed, checksum):
    """It is integers and SHA-256, the same on every machine."""
    indices = long_tail_indices((np.arange(images) % classes).astype(">u2"), ratio, seed)
    assert hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest() == checksum


def test_indices_are_ascending_of_the_right_classes_and_ratios_nest():
    indices = long_tail_indices(LABELS, 0.1, 3)
    assert (np.diff(indices) > 0).all()
    assert np.bincount(LABELS[indices]).tolist() == [50, 23, 10, 5]
    assert set(indices.tolist()) < set(long_tail_indices(LABELS, 0.5, 3).tolist())
    assert not np.array_equal(indices, long_tail_indices(LABELS, 0.1, 4))
    few = np.array([0] * 3 + [1] * 10)
    assert np.bincount(few[long_tail_indices(few, 0.5)]).tolist() == [3, 1]  # the smallest class is the measure


def test_a_file_holds_the_subset_of_its_labels(tmp_path):
    path = tmp_path / "toy.txt"
    indices = write_long_tail(path, "toy", LABELS, 0.1, 3)
    checksum = hashlib.sha256(b"".join(int(label).to_bytes(8, "little") for label in LABELS)).hexdigest()
    lines = path.read_text().splitlines()
    assert lines[0] == f"# long-tail dataset=toy ratio=0.1 seed=3 labels_sha256={checksum}"
    assert lines[1:] == [str(i) for i in indices]
    assert np.array_equal(read_long_tail(path, LABELS.astype(np.int32)), indices)
    other = LABELS.copy()
    other[[0, 1]] = (LABELS[0] + 1) % 4, LABELS[1]
    with pytest.raises(DataError, match="not the choice"):
        read_long_tail(path, other)


@inputs(300)
@given(st.data())
def test_a_damaged_file_is_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "toy.txt"
    write_long_tail(path, "toy", LABELS, 0.1, 3)
    whole = path.read_bytes()
    path.write_bytes(data.draw(st.one_of(spoiled(whole), spoiled_lines(whole, b" "))))
    found = accepted(read_long_tail, path, LABELS)
    assert found is None or np.array_equal(found, long_tail_indices(LABELS, 0.1, 3))  # line ends may differ
