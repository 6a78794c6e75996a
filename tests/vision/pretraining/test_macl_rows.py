"""MACL on images reweights NT-Xent's rows, on text InfoNCE's; runs older than the option go on as they were."""

import json

import pytest
import spec_formulas as spec
import torch
from vision_cases import ONE_PROCESS

from dystress_text.errors import UserError
from dystress_text.simcse.arguments import parse as parse_text
from dystress_text.simcse.objective import objective_of as text_objective
from dystress_text.training.checkpoints import as_before
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
    first, second = z1.tolist(), z2.tolist()
    tau = spec.adaptive_tau(first, second, tau_0, alpha, a_0)
    rows = [(s / tau, [v / tau for v in negatives]) for s, negatives in rows_of(first, second)]
    return spec.weighted_info_nce(rows, spec.macl_weights(rows))


def test_there_are_presets_of_macl():
    assert {"cifar10-macl", "cifar100-macl", "imagenet100-macl", "imagenet1k-macl"} <= set(MACL_PRESETS)


@pytest.mark.parametrize("flags", [*(["--preset", name] for name in MACL_PRESETS), ["--objective=macl"]])
def test_macl_on_images_is_the_loop_over_nt_xents_rows(flags):
    z1, z2 = views()
    expected = loop(spec.simclr_rows, z1, z2, 0.1, 0.5, 0.0)
    assert float(objective_of(parse(flags), ONE_PROCESS)(z1, z2)) == pytest.approx(expected, rel=1e-12)
    other = float(objective_of(parse([*flags, "--rows=infonce"]), ONE_PROCESS)(z1, z2))
    assert other == pytest.approx(loop(spec.simcse_rows, z1, z2, 0.1, 0.5, 0.0), rel=1e-12)
    assert abs(other - expected) > 0.1


@pytest.mark.parametrize("flags", [["--preset=sts-macl"], ["--objective=macl"]])
def test_macl_on_text_is_the_loop_over_infonces_rows(flags):
    z1, z2 = views()
    z2 = z1 + 0.3 * (z2 - z1)  # its temperature needs close pairs
    expected = loop(spec.simcse_rows, z1, z2, 0.05, 2.0, 0.8)
    assert float(text_objective(parse_text(flags))(z1, z2)) == pytest.approx(expected, rel=1e-12)


def test_macl_is_lightlys():
    theirs = pytest.importorskip("lightly.loss", reason="lightly is not installed", exc_type=Exception).MACLLoss()
    z1, z2 = views()
    ours = objective_of(parse(["--preset=cifar10-macl"]), ONE_PROCESS)
    assert float(ours(z1, z2)) == pytest.approx(float(theirs(z1, z2)), rel=1e-6)  # it adds 1e-8 to 1 - P


def test_other_objectives_have_their_own_rows():
    for parser in (parse, parse_text):
        for objective in ("infonce", "dcl"):
            with pytest.raises(UserError, match=f"^--rows: objective '{objective}' has its own rows; macl takes"):
                parser([f"--objective={objective}", "--rows=ntxent"])
    assert parse(["--objective=ntxent"]).loss.rows is None
    assert parse(["--preset=cifar10-macl", "--objective=dcl", "--temperature=constant"]).loss.rows is None


def test_an_older_run_goes_on_with_the_rows_that_it_had():
    def identity(settings):
        return json.loads(json.dumps(settings.options()))

    def older(settings):
        return {name: value for name, value in identity(settings).items() if name != "rows"}

    for same in (parse([]), parse(["--objective=macl", "--rows=infonce"]), parse_text(["--preset=sts-macl"])):
        assert as_before(older(same), identity(same)) == identity(same)
    now = identity(parse(["--preset=cifar10-macl"]))
    then = as_before(older(parse(["--preset=cifar10-macl"])), now)
    assert [name for name in now if then[name] != now[name]] == ["rows"]  # it is refused, and says why
    assert as_before({"a": 1}, ["a"]) == {"a": 1}
