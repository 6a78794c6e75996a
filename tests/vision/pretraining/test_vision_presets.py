"""Every recipe is made of options that exist, builds its temperature, and names the paper's number."""

import re
import warnings
from dataclasses import fields

import pytest
import torch
from vision_cases import ONE_PROCESS

from dystress_text.training.settings import EngineSettings
from vision.data.augment import SimclrAugment, draw_jitter
from vision.data.crops import RandomCrop
from vision.data.loading import SMALL
from vision.data.sources import SET_NAMES
from vision.evaluation.paper import told
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


def test_the_list_has_a_line_for_each(capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--list_presets"])
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PRESETS)
    assert "linear top-1 78.78" in lines[list(PRESETS).index("imagenet100")]


def test_the_help_is_that_of_vision(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    for right in ("default cosine,", "Lowest temperature; 0.07.", "half a swing, in --unit; 200.", "imagenet100_lt",
                  "A = a_0; 0.1.", "cifar100_lt", "before --lr_scaling"):  # fmt: skip
        assert right in told
    for wrong in ("default shifted_cosine", "of AdamW", "dropout", "grad_cache", "0.05 ", "sentence"):
        assert wrong not in told
    assert parse([]).engine.grad_cache_chunk is None


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


def test_the_recipe_of_imagenet100(parsed):
    settings = parsed["imagenet100"]
    vision, engine = settings.vision, settings.engine
    assert (vision.architecture, vision.stem, vision.optimizer, vision.lr_scaling) == (
        "resnet50",
        "imagenet",
        "lars",
        "sqrt",
    )
    assert (engine.learning_rate, engine.weight_decay, engine.train_batch_size) == (0.075, 1e-6, 256)
    assert engine.warmup_ratio * engine.num_train_epochs == 10
    assert vision.blur


def test_crops_are_simclrs_and_so_is_colour_jitter_at_imagenet_scale(parsed):
    for name, settings in parsed.items():
        vision = settings.vision
        large = vision.image_size > SMALL
        smallest = {"quickstart": 0.2, "imagenet100-400-dino": 0.14}.get(name, 0.08)
        expected = (2.0, True, smallest) if large else (1.0, False, smallest)
        assert (vision.jitter, vision.blur, vision.min_scale) == expected, name
        SimclrAugment(
            RandomCrop(vision.image_size, vision.min_scale), (0.5,) * 3, (0.25,) * 3, vision.jitter, vision.blur
        )
    for jitter, expected in ((2.0, (0.8, 0.8, 0.8, 0.2)), (1.0, (0.4, 0.4, 0.4, 0.1))):
        factors = draw_jitter(100_000, jitter, torch.device("cpu"))
        spread = (factors.amax(1) - torch.tensor([1.0, 1.0, 1.0, 0.0])).tolist()
        assert spread == pytest.approx(expected, rel=0.01)


def test_version_1_has_its_minimum_in_the_right_half_and_version_2_in_the_left(parsed):
    grid = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    found = set()
    for name in parsed:
        if version := re.search(r"-shift-v(\d)-(0\.\d)", name):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                lowest = float(grid[objective_of(parsed[name], ONE_PROCESS).temperature(grid).argmin()])
            found.add((int(version[1]), float(version[2]), round(lowest, 3)))
    assert found == {(1, 0.2, 0.4), (1, 0.4, 0.3), (2, 0.2, -0.4), (2, 0.4, -0.3), (3, 0.2, -1), (3, 0.4, -1)}


def test_each_trains_on_the_data_set_of_its_name(parsed):
    for name, settings in parsed.items():
        dataset = settings.vision.dataset
        said = name.split("-")[0] + ("_lt" if name.startswith("imagenet100-lt") else "")
        assert dataset == {"quickstart": "shapes"}.get(name, said)
        assert dataset in (*SET_NAMES, "shapes"), name


def test_evaluations_are_ten_epochs_apart(parsed):
    images = {"cifar10": 50_000, "tiny_imagenet": 100_000, "imagenet100": 126_689, "imagenet1k": 1_281_167}
    for name, count in images.items():
        engine = parsed[name].engine
        assert engine.eval_steps == 10 * (count // engine.train_batch_size)


def test_lines_have_the_figures_and_say_what_is_ours(parsed):
    for name in parsed:
        about, rows = PRESETS[name].about, PRESETS[name].rows
        if rows:
            assert about.startswith(told(rows[0], PRESETS[name].settings["dataset"])), name
    assert "linear top-1 65.10, linear top-5 86.20" in PRESETS["imagenet1k-dcl"].about
    assert "20-NN top-1 72.00, 20-NN top-5 89.76" in PRESETS["imagenet100-range-0.1-0.2"].about
    assert PRESETS["imagenet1k-macl"].about.count("top-5") == 0  # the paper has none
    assert "as a batch of 128 cannot be whitened in the table's 256" in PRESETS["imagenet100-400-w-mse"].about


# benchmarks/imagenet/resnet50/ of lightly: rate at batch 256, its scaling, weight decay, width of the output, and what
# the loss takes
LIGHTLYS = {
    "-simclr": (0.075, "sqrt", 1e-6, 128, {"temp": 0.1}),
    "-dcl": (0.075, "sqrt", 1e-6, 128, {"temp": 0.1}),
    "-dclw": (0.075, "sqrt", 1e-6, 128, {"temp": 0.1, "sigma": 0.5}),
    "-byol": (0.45, "linear", 1e-6, 256, {}),
    "-barlow-twins": (0.2, "linear", 1.5e-6, 8192, {}),
    "-vicreg": (0.5, "linear", 1e-6, 8192, {}),
}


@pytest.mark.parametrize("method", LIGHTLYS)
def test_imagenet_1k_rows_of_other_methods_are_lightlys_runs(method, parsed):
    rate, scaling, decay, width, of_loss = LIGHTLYS[method]
    large = parsed[f"imagenet1k{method}"]
    assert (large.engine.learning_rate, large.vision.lr_scaling, large.engine.weight_decay) == (rate, scaling, decay)
    assert (large.vision.out_dim, large.engine.train_batch_size, large.engine.num_train_epochs) == (width, 256, 100)
    assert large.engine.warmup_ratio * large.engine.num_train_epochs == 10
    small = parsed.get(f"imagenet100{method}")
    for settings in (large, small) if small else (large,):
        assert {name: getattr(settings.loss, name) for name in of_loss} == of_loss
        assert settings.vision.out_dim == width
    if small:  # the text has LARS with SimCLR's rate for all its runs on ImageNet100
        assert (small.engine.learning_rate, small.vision.lr_scaling, small.engine.weight_decay) == (0.075, "sqrt", 1e-6)


def test_the_long_tail_of_imagenet100_has_the_texts_epochs(parsed):
    for name in ("imagenet100-lt", "imagenet100-lt-schedule"):
        engine = parsed[name].engine
        assert (engine.num_train_epochs, engine.train_batch_size) == (2000, 256)
        assert engine.warmup_ratio * engine.num_train_epochs == 10


def test_dystress_on_dcl_is_a_preset_of_the_text(parsed):
    loss = parsed["imagenet100-dcl-cosine"].loss
    assert (loss.objective, loss.temperature, loss.tau_min, loss.tau_max) == ("dcl", "cosine", 0.1, 0.2)
    assert PRESETS["imagenet100-dcl-cosine"].rows == ()  # no table has it
