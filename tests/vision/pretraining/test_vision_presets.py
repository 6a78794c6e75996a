"""Every recipe is made of options that exist and builds its objective; tests/test_paper_rows.py has the numbers."""

import warnings
from dataclasses import fields

import pytest
import spec_formulas as spec
import torch
from vision_cases import ONE_PROCESS

from dystress_text.errors import ParameterError
from dystress_text.training.settings import EngineSettings
from vision.pretraining.build_task import objective_of
from vision.pretraining.presets import PRESETS
from vision.pretraining.run import check_batch
from vision.pretraining.settings import VisionLossSettings, VisionSettings
from vision.train import parse

OPTIONS = {field.name for group in (VisionSettings, VisionLossSettings, EngineSettings) for field in fields(group)}


def test_options_exist_and_fit_each_other():
    for name, preset in PRESETS.items():
        settings = parse(["--preset", name])
        assert set(preset.settings) <= OPTIONS, name
        assert (settings.preset, settings.engine.output_dir) == (name, "out_vision")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several of the paper's profiles have a falling logit
            objective_of(settings, ONE_PROCESS)
        check_batch(settings, settings.engine.train_batch_size, 1)


@pytest.mark.parametrize("flags", [["--objective=queue"], ["--preset=cifar10"]])
def test_one_image_a_process_has_no_batch_statistics(flags):
    with pytest.raises(ParameterError, match="needs at least 2 images a process"):
        check_batch(parse(flags), 2, 2)
    check_batch(parse([*flags, "--sync_batchnorm=true"]), 2, 2)


MACL_PRESETS = [name for name, preset in PRESETS.items() if preset.settings.get("objective") == "macl"]


@pytest.mark.parametrize("flags", [*(["--preset", name] for name in MACL_PRESETS), ["--objective=macl"]])
def test_macl_on_images_is_the_loop_over_nt_xents_rows(flags):
    """On text it is InfoNCE's, which the option asks for."""
    z1, z2 = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    tau = spec.adaptive_tau(z1, z2, 0.1, 0.5, 0.0)
    for rows_of, more in ((spec.simclr_rows, []), (spec.simcse_rows, ["--rows=infonce"])):
        expected = spec.mean([spec.macl(*row) for row in spec.logits_of(rows_of(z1, z2), lambda s: tau)])
        found = objective_of(parse([*flags, *more]), ONE_PROCESS)(z1, z2)
        assert float(found) == pytest.approx(float(expected), rel=1e-12)
