"""Long-tailed subsets: exact counts, and a choice that never changes."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.errors import DataError, ParameterError
from vision.data.long_tail import long_tail_counts, long_tail_indices

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
        with pytest.raises(DataError, match="no image of the last class"):
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
