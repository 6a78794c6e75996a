"""Optimisers of pre-training against their formulas."""

import math

import pytest
import torch
from torch import nn

from dystress_text.training.settings import EngineSettings
from vision.pretraining.build_task import make_optimizer, scaled_rate
from vision.pretraining.settings import VisionSettings


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)).double()


def build(name, net, decay=0.1, rate=0.5, **options):
    engine = EngineSettings(learning_rate=rate, weight_decay=decay)
    return make_optimizer(net, engine, VisionSettings(optimizer=name, **options), batch_size=64)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("sqrt", 8), ("linear", 0.25)])
def test_the_rate_is_scaled_to_the_batch(scaling, factor):
    rate = scaled_rate(EngineSettings(learning_rate=0.075), VisionSettings(lr_scaling=scaling), 64)
    assert rate == pytest.approx(0.075 * factor)


def test_lars_against_its_formula():
    """You et al., 2017: trust 0.001 |w| / (|g| + d |w|) on kernels and matrices; plain momentum on the rest."""
    net = network()
    optimizer = build("lars", net)
    weights = [p.detach().clone() for p in net.parameters()]
    momentum = [torch.zeros_like(p) for p in weights]
    for step in range(3):
        torch.manual_seed(step)
        gradients = [torch.randn_like(p) for p in weights]
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        for i, gradient in enumerate(gradients):
            update = gradient
            if gradient.ndim > 1:
                norm = math.sqrt(sum(x * x for x in weights[i].flatten().tolist()))
                length = math.sqrt(sum(x * x for x in gradient.flatten().tolist()))
                update = 0.001 * norm / (length + 0.1 * norm) * (gradient + 0.1 * weights[i])
            momentum[i] = 0.9 * momentum[i] + update
            weights[i] = weights[i] - 0.5 * momentum[i]
    for parameter, expected in zip(net.parameters(), weights, strict=True):
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-9, atol=1e-12)
