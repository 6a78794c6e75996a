"""Optimisers of pre-training against their formulas."""

import pytest
import torch
from torch import nn

from dystress_text.training.settings import EngineSettings
from vision.pretraining.build_task import make_optimizer
from vision.pretraining.settings import VisionSettings


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("sqrt", 8), ("linear", 0.25)])
def test_the_rate_is_scaled_to_the_batch(scaling, factor):
    vision = VisionSettings(lr_scaling=scaling)
    optimizer = make_optimizer(nn.Linear(2, 2), EngineSettings(learning_rate=0.075), vision, 64)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.075 * factor)


@pytest.mark.parametrize(("eta", "ratio"), [(0.001, 1.0), (0.02, 0.016)])
def test_lars_against_its_formula(eta, ratio):
    """You et al., 2017: trust eta |w| / (|g| + d |w|) on kernels and matrices; plain momentum on the rest."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)).double()
    engine = EngineSettings(learning_rate=0.5, weight_decay=0.1)
    optimizer = make_optimizer(
        net, engine, VisionSettings(optimizer="lars", trust_coefficient=eta, bias_lr_ratio=ratio), batch_size=64
    )
    expected = [p.detach().clone() for p in net.parameters()]
    momentum = [torch.zeros_like(w) for w in expected]
    for _ in range(3):
        for i, parameter in enumerate(net.parameters()):
            g = torch.randn_like(parameter)
            parameter.grad, w = g.clone(), expected[i]
            if g.ndim > 1:
                g = eta * w.norm() / (g.norm() + 0.1 * w.norm()) * (g + 0.1 * w)
            momentum[i] = 0.9 * momentum[i] + g
            expected[i] = w - (0.5 if g.ndim > 1 else 0.5 * ratio) * momentum[i]
        optimizer.step()
    torch.testing.assert_close([*net.parameters()], expected, rtol=1e-9, atol=1e-12, check_stride=False)
