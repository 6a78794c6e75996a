"""MACL on images reweights NT-Xent's rows, on text InfoNCE's; runs older than the option go on as they were."""

import pytest
import spec_formulas as spec
import torch
from vision_cases import ONE_PROCESS

from vision.pretraining.build_task import objective_of
from vision.pretraining.presets import PRESETS
from vision.train import parse

MACL_PRESETS = [name for name, preset in PRESETS.items() if preset.settings.get("objective") == "macl"]


def views(n=7, dim=5):
    generator = torch.Generator().manual_seed(3)
    z1 = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return z1, z1 + torch.randn(n, dim, generator=generator, dtype=torch.float64)


def loop(rows_of, z1, z2, tau_0, alpha, a_0):
    """MACL over explicit pairs."""
    tau = spec.adaptive_tau(z1, z2, tau_0, alpha, a_0)
    return float(spec.mean([spec.macl(*row) for row in spec.logits_of(rows_of(z1, z2), lambda s: tau)]))


@pytest.mark.parametrize("flags", [*(["--preset", name] for name in MACL_PRESETS), ["--objective=macl"]])
def test_macl_on_images_is_the_loop_over_nt_xents_rows(flags):
    z1, z2 = views()
    expected = loop(spec.simclr_rows, z1, z2, 0.1, 0.5, 0.0)
    assert float(objective_of(parse(flags), ONE_PROCESS)(z1, z2)) == pytest.approx(expected, rel=1e-12)
    other = float(objective_of(parse([*flags, "--rows=infonce"]), ONE_PROCESS)(z1, z2))
    assert other == pytest.approx(loop(spec.simcse_rows, z1, z2, 0.1, 0.5, 0.0), rel=1e-12)
    assert abs(other - expected) > 0.1
