"""The presets and the figures in reports against the paper's tables, in paper_tables.json."""

import json
from pathlib import Path

import pytest

from dystress_text.config import arguments as text_arguments
from dystress_text.config import paper as text_paper
from dystress_text.evaluation.catalogue import TASKS

PAPER = json.loads((Path(__file__).parent / "paper_tables.json").read_text())
OPTIONS = {
    "batch": "train_batch_size",
    "epochs": "num_train_epochs",
    "scale": "half_width",
}
NAMED = {
    "bert-base-uncased": {"model_name_or_path": "bert-base-uncased"},
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
