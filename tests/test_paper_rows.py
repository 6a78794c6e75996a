"""The presets and the figures in reports against the paper's tables, in paper_tables.json."""

import json
from pathlib import Path

import pytest

from dystress_text.config import arguments as text_arguments
from dystress_text.config import paper as text_paper
from dystress_text.evaluation.catalogue import TASKS
from vision import train
from vision.evaluation import paper
from vision.pretraining.presets import PRESETS

PAPER = json.loads((Path(__file__).parent / "paper_tables.json").read_text())
LABELS = {  # of the tables of images
    "in100": "in100_bal_bs256_lars_200eps",
    "in1k": "in1k_bal_bs256_lars_100eps",
    "cifar": "cifar10n100_bal_bs128_sgd0p1_200eps",
    "kukleva_cifar": "compkuklevacifar",
    "kukleva_in100lt": "compkuklevain100lt",
    "cifar10lt": "cifar10lt",
    "cifar100lt": "cifar100lt",
    "others_in100": "otherframein100",
    "others_cifar": "otherframecifar",
    "functions": "abltempfunc",
    "monotony": "monotony",
    "geometry/CIFAR10": "unifalginmentmetrics",
    "geometry/CIFAR100": "unifalginmentmetrics",
    "geometry/ImageNet1K": "unifalginmentmetrics",
    "range": "temprange_abl",
    "profile": "tempprof_abl",
}
OPTIONS = {
    "batch": "train_batch_size",
    "epochs": "num_train_epochs",
    "projection_dim": "out_dim",
    "scale": "half_width",
}
NAMED = {
    "ResNet-50": {"architecture": "resnet50", "stem": "imagenet"},
    "ResNet-18, CIFAR stem": {"architecture": "resnet18", "stem": "cifar"},
    "bert-base-uncased": {"model_name_or_path": "bert-base-uncased"},
    "LARS": {"optimizer": "lars"},
    "SGD 0.06": {"optimizer": "sgd", "learning_rate": 0.06},
    "Wiki1M": {"train_file": None},
}


def expected_options(hyper_parameters):
    """The options of the paper's hyper-parameters; a shift or scale of None says that it has none."""
    expected = {}
    for name, value in hyper_parameters.items():
        if value in NAMED:
            expected |= NAMED[value]
        elif value is not None or name in ("shift", "scale"):
            expected[OPTIONS.get(name, name)] = value
    return expected


def options_of(settings):
    """The options of a run with the parameters of its loss and temperature."""
    temperature = getattr(settings.loss, "temperature", None)
    parameters = {**vars(settings.loss), **getattr(temperature, "__dict__", {})}
    return {"shift": None, "half_width": None, **parameters, **settings.options()}


def check_preset(settings, hyper_parameters):
    options = options_of(settings)
    expected = expected_options(hyper_parameters)
    assert {name: options[name] for name in expected} == expected, options["preset"]


@pytest.mark.filterwarnings("ignore")  # several of the paper's profiles have a falling logit
@pytest.mark.parametrize("group", ["sts", "transfer"])
def test_text_rows(group):
    table = PAPER[f"stsresall/{group}"]
    for row in table["rows"]:
        (ours,) = [own for own in text_paper.ROWS if own.name == row["name"]]
        printed = ours.printed[("sts", "transfer").index(group)]
        assert [name.replace("-", "") for name in TASKS[group]] == table["columns"][:-1]
        assert [*ours.figures(group).values(), printed] == row["values"], ours.name
        settings = text_arguments.parse([f"--preset={ours.preset}"])
        check_preset(settings, {**table["setup"], **row["settings"]})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("key", LABELS)
def test_image_rows(key):
    table, label = PAPER[key], LABELS[key]
    for row in table["rows"]:
        name = row["name"]
        figures = dict(zip(table["columns"], row["values"], strict=True))
        hyper_parameters = {**table.get("setup", {}), **(row.get("settings") or {})}
        if "projection_dim" in figures:
            hyper_parameters["projection_dim"] = figures.pop("projection_dim")
        if name == "W-MSE":  # 256 dimensions cannot be whitened in a batch of 128: 64 here
            hyper_parameters.pop("projection_dim", None)
        assert set(figures.values()) <= set(paper.TABLES[label].rows[name])
        presets = [own for own in PRESETS if paper.row_of(label, name) in PRESETS[own].rows]
        assert presets, name
        for preset in presets:
            check_preset(train.parse([f"--preset={preset}"]), hyper_parameters)


def test_transfer_figures():
    table = PAPER["transfer"]
    for row in table["rows"]:
        for model, figure in zip(table["columns"], row["values"], strict=True):
            assert figure in paper.TABLES["transferlearning"].rows[model]


def test_number_of_image_figures():
    """No figure of ours is missing in the paper."""
    tables = paper.TABLES.values()
    figures = [value for table in tables for row in table.rows.values() for value in row]
    assert len(figures) - figures.count(None) == 219
