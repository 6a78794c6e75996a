"""Which share of the trained weights is taken."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from dystress_text.adaptation.choice import METRIC, Chooser, Loaded, choose_share
from dystress_text.adaptation.measures import measure
from dystress_text.adaptation.probes import make_probes
from dystress_text.adaptation.split import HeldOut
from dystress_text.adaptation.verdict import Bars, merit, score


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
    chooser = SimpleNamespace(points=lambda embed: points(float(tuned.model.weight[0, 0])))
    found = choose_share(base, tuned, (1.0, 0.5, 0.25, 0.75), chooser)
    assert next(iter(found)) == chosen
    assert set(found) == {0.25, 0.5, 0.75, 1.0}
    torch.testing.assert_close(tuned.model.bias, torch.full((2,), 1 + 2 * chosen), rtol=0, atol=0)
    assert (base.model.weight == 1).all()


def test_training_is_measured_by_what_decides():
    """The figure is the score's, from the texts of the deciding measures alone."""
    words = [f"w{i}" for i in range(200)]
    rng = np.random.default_rng(0)
    sentences = tuple(" ".join(rng.choice(words, 12)) for _ in range(40))
    pairs = [(sentences[i], sentences[i + 1]) for i in range(5)]
    probes = make_probes(HeldOut(sentences[6:], np.arange(34), np.arange(34)), "lines", 0, pairs)
    asked = []

    def model(scale):
        def embed(texts):
            asked.append(set(texts))
            rows = [
                sum(np.random.default_rng(list(w.encode())).normal(1 - scale, 1, 32) for w in text.split())
                for text in texts
            ]
            return torch.tensor(np.array(rows), dtype=torch.float32)

        return embed

    bars = Bars(weights={"halves log rank": 1.0, "truncation log rank": 0.5})
    chooser = Chooser(probes, bars, measure(probes, model(0.2)))
    found = chooser(model(0.9))[METRIC]
    tuned = measure(probes, model(0.9))
    assert found == pytest.approx(score(chooser.base, tuned, bars).figure)
    assert abs(found) > 1
    assert asked[1] < asked[0]
    assert chooser.points(model(0.9)) == merit(chooser.base, tuned, bars)
