"""Every recipe is made of options that exist, builds its temperature, and names the paper's number."""

import json
import re
import warnings
from dataclasses import fields

import pytest
import torch
from conftest import SHARED
from vision_cases import ONE_PROCESS

from dystress_text.training.settings import EngineSettings
from vision.data.augment import SimclrAugment, draw_jitter
from vision.data.crops import RandomCrop
from vision.data.loading import SMALL
from vision.data.sources import SET_NAMES
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


def test_colour_jitter_is_simclrs_at_imagenet_scale_and_the_papers_below(parsed):
    for name, settings in parsed.items():
        vision = settings.vision
        large = vision.image_size > SMALL
        expected = (2.0, True, 0.08) if large else (1.0, False, 0.08)
        assert (vision.jitter, vision.blur, vision.min_scale) == expected, name
        SimclrAugment(
            RandomCrop(vision.image_size, vision.min_scale), (0.5,) * 3, (0.25,) * 3, vision.jitter, vision.blur
        )
    for jitter, expected in ((2.0, (0.8, 0.8, 0.8, 0.2)), (1.0, (0.4, 0.4, 0.4, 0.1))):
        factors = draw_jitter(100_000, jitter, torch.device("cpu"))
        spread = (factors.amax(1) - torch.tensor([1.0, 1.0, 1.0, 0.0])).tolist()
        assert spread == pytest.approx(expected, rel=0.01)


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


def test_numbers_are_the_papers():
    file = SHARED / "paper_tables.json"
    if not file.is_file():
        pytest.skip("no ../shared/paper_tables.json")
    tables = json.loads(file.read_text())

    def row(table, name, column):
        values = next(r["values"] for r in tables[table]["rows"] if r["name"] == name)
        return values[tables[table]["columns"].index(column)]

    cases = {
        "cifar10": row("cifar", "DySTreSS", "CIFAR10"),
        "cifar100": row("cifar", "DySTreSS", "CIFAR100"),
        "cifar10-simclr": row("cifar", "SimCLR", "CIFAR10"),
        "cifar100-moco": row("cifar", "MoCo v2", "CIFAR100"),
        "cifar100-dcl": row("cifar", "SimCLR+DCL", "CIFAR100"),
        "cifar10-macl": row("cifar", "MACL (repro.)", "CIFAR10"),
        "cifar10-dclw": row("geometry/CIFAR10", "DCLW", "accuracy"),
        "cifar100-dclw": row("geometry/CIFAR100", "DCLW", "accuracy"),
        "cifar100-256": row("others_cifar", "DySTreSS", "CIFAR100"),
        "cifar10-linear": row("functions", "linear", "CIFAR10"),
        "cifar100-exponential": row("functions", "exponential", "CIFAR100"),
        "cifar100-monotonic": row("monotony", "monotonic cosine", "CIFAR100"),
        "cifar10_lt": row("cifar10lt", "DySTreSS", "1-NN"),
        "cifar100_lt-star": row("cifar100lt", "DySTreSS*", "1-NN"),
        "cifar10_lt-2000": row("kukleva_cifar", "DySTreSS", "CIFAR10-LT"),
        "cifar100_lt-2000-schedule": row("kukleva_cifar", "Kukleva et al.", "CIFAR100-LT"),
        "imagenet100": row("in100", "DySTreSS", "top1"),
        "imagenet100-400": row("others_in100", "DySTreSS", "top1"),
        "imagenet100-macl": row("in100", "MACL", "top1"),
        "imagenet1k-dcl": row("in1k", "DCL", "top1"),
        "imagenet1k-dclw": row("in1k", "DCLW", "top1"),
        "imagenet1k-macl": row("in1k", "MACL", "top1"),
        "imagenet1k": row("in1k", "DySTreSS", "top1"),
        "imagenet100-lt": tables["kukleva_in100lt"]["rows"][1]["values"][0],
        "imagenet100-range-0.07-0.5": row("range", "0.07/0.5", "linear top1"),
        "imagenet100-shift-0.4": row("profile", "-0.4/0.7", "linear top1"),
        "imagenet100-shift+0.2": row("profile", "0.2/0.6", "linear top1"),
    }
    titles = {"byol": "BYOL", "barlow-twins": "Barlow Twins", "vicreg": "VICReg", "zero-icl": "Zero-ICL",
              "zero-fcl": "Zero-FCL", "zero-cl": "Zero-CL", "w-mse": "W-MSE", "arb": "ARB", "dino": "DINO"}  # fmt: skip
    tables_of = {"imagenet100": ("in100", "top1"), "imagenet1k": ("in1k", "top1"),
                 "imagenet100-400": ("others_in100", "top1"), "cifar10-256": ("others_cifar", "CIFAR10"),
                 "cifar100-256": ("others_cifar", "CIFAR100")}  # fmt: skip
    for start, (table, column) in tables_of.items():
        there = {r["name"] for r in tables[table]["rows"]}
        for suffix, title in titles.items():
            assert (title in there) == (f"{start}-{suffix}" in PRESETS)
            if title in there:
                cases[f"{start}-{suffix}"] = row(table, title, column)
    for name, number in cases.items():
        said = [float(x) for x in re.findall(r"\d+\.\d+(?=,|;|$)", PRESETS[name].about)]
        assert number in said, (name, number, PRESETS[name].about)
