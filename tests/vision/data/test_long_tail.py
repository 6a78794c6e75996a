"""Long-tailed subsets: exact counts, and a choice that never changes."""

import hashlib

import numpy as np
import pytest

from dystress_text.errors import DataError
from vision.data.long_tail import long_tail_counts, long_tail_indices


@pytest.mark.parametrize(
    ("n_max", "classes", "ratio", "total"),
    [(5000, 10, 0.01, 12_406), (500, 100, 0.01, 10_847), (100, 2, 0.29, 129)],
)
def test_totals_are_those_of_the_paper(n_max, classes, ratio, total):
    """And the floor is that of the formula, where floats make 28.999... of 100 * 0.29."""
    counts = long_tail_counts(n_max, classes, ratio)
    assert (counts[0], counts[-1], sum(counts)) == (n_max, round(n_max * ratio), total)


def test_a_class_without_images_is_refused():
    with pytest.raises(DataError, match="no image of the last class"):
        long_tail_counts(99, 10)


@pytest.mark.parametrize(
    ("images", "classes", "ratio", "seed", "checksum"),
    [(50_000, 10, 0.01, 0, "80ff317560e7170425dac3f73b121b8d385a22b1342de4f279268a2133725c71"),
     (2_000, 10, 0.1, -5, "3ddb24b04b70e2b1ca18789f954f63fae6bf729fe639801f94116d4b0a305b7e")],
)  # fmt: skip
def test_the_choice_never_changes(images, classes, ratio, seed, checksum):
    """It is integers and SHA-256, the same on every machine."""
    indices = long_tail_indices((np.arange(images) % classes).astype(">u2"), ratio, seed)
    assert hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest() == checksum


def test_ratios_nest_and_the_smallest_class_is_the_measure():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 50))
    assert set(long_tail_indices(labels, 0.1, 3).tolist()) < set(long_tail_indices(labels, 0.5, 3).tolist())
    few = np.array([0] * 3 + [1] * 10)
    assert np.bincount(few[long_tail_indices(few, 0.5)]).tolist() == [3, 1]
