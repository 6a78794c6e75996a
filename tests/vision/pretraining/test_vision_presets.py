"""Every recipe is made of options that exist, builds its temperature, and names the paper's number."""

import warnings
from dataclasses import fields

import pytest
from vision_cases import ONE_PROCESS

from dystress_text.training.settings import EngineSettings
from vision.pretraining.build_task import objective_of
from vision.pretraining.presets import PRESETS
from vision.pretraining.run import check_batch
from vision.pretraining.settings import VisionLossSettings, VisionSettings
from vision.train import parse

OPTIONS = {field.name for group in (VisionSettings, VisionLossSettings, EngineSettings) for field in fields(group)}


@pytest.fixture(scope="module")
def parsed():
    """The settings of every preset."""
    return {name: parse(["--preset", name]) for name in PRESETS}


def test_options_exist_and_fit_each_other(parsed):
    for name, settings in parsed.items():
        assert set(PRESETS[name].settings) <= OPTIONS, name
        assert settings.preset == name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several of the paper's profiles have a falling logit
            objective_of(settings, ONE_PROCESS)
        check_batch(settings, settings.engine.train_batch_size, 1)


def test_the_recipe_of_cifar(parsed):
    settings = parsed["cifar10"]
    vision, loss, engine = settings.vision, settings.loss, settings.engine
    assert (vision.architecture, vision.stem, vision.optimizer, engine.learning_rate) == (
        "resnet18",
        "cifar",
        "sgd",
        0.06,
    )
    assert (engine.train_batch_size, engine.num_train_epochs, engine.weight_decay) == (128, 200, 5e-4)
    assert (loss.objective, loss.tau_min, loss.tau_max, vision.knn_k) == ("ntxent", 0.07, 0.2, 200)
    assert engine.output_dir == "out_vision"
