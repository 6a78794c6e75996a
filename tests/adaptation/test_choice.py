"""Which share of the trained weights is taken."""

import math

import pytest
import torch
from torch import nn

from dystress_text.adaptation.choice import METRIC, Loaded, choose_share


def linear(value):
    layer = nn.Linear(2, 2)
    for parameter in layer.parameters():
        nn.init.constant_(parameter, value)
    return Loaded(layer, None)


@pytest.mark.parametrize(
    ("points", "chosen"),
    [
        (lambda weight: -abs(weight - 2.1), 0.5),
        (lambda weight: 1.0, 0.25),  # of equal ones the smallest share
        (lambda weight: weight if weight < 3 else math.nan, 0.75),
        (lambda weight: weight, 1.0),
    ],
)
def test_the_share_with_the_most_points(points, chosen):
    """The base's weights are 1 and the trained ones 3, so that a share's are 1 + 2 alpha."""
    base, tuned = linear(1.0), linear(3.0)
    found = choose_share(
        base, tuned, (1.0, 0.5, 0.25, 0.75), lambda embed: {METRIC: points(float(tuned.model.weight[0, 0]))}
    )
    assert next(iter(found)) == chosen
    assert set(found) == {0.25, 0.5, 0.75, 1.0}
    torch.testing.assert_close(tuned.model.bias, torch.full((2,), 1 + 2 * chosen), rtol=0, atol=0)
    assert (base.model.weight == 1).all()
