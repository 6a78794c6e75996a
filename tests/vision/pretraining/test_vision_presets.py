"""Every recipe is made of options that exist and builds its objective; tests/test_paper_rows.py has the numbers."""

import warnings
from dataclasses import fields

from vision_cases import ONE_PROCESS

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
