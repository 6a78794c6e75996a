"""Presets have options that fit, what their scripts and papers say, and a line each; the paper's
misprints are said.
"""

import warnings
from dataclasses import fields

import pytest

from dystress_text.config.arguments import parse
from dystress_text.config.paper import ROWS
from dystress_text.config.presets import PRESETS
from dystress_text.config.settings import PROGRAM
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import average

MISPRINTED = {"MACL (repro.)": 75.45, "DySTreSS 0.03/0.05": 75.46, "DySTreSS* 0.03/0.05": 75.97}


def test_every_preset_has_known_options_that_fit_and_flags_override_it():
    known = {field.name for group in PROGRAM.groups for field in fields(group)}
    for name, preset in PRESETS.items():
        assert set(preset.settings) <= known
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several of the paper's profiles have a falling logit
            settings = parse([f"--preset={name}", "--learning_rate", "7e-4"])
        assert (settings.preset, settings.training.learning_rate) == (name, 7e-4)
        assert str(settings.loss) == settings.text.loss == preset.settings["loss"]


def test_a_temperature_on_the_command_line_replaces_that_of_the_presets_objective():
    assert str(parse(["--preset=sts-shifted-0.2-0.03-0.05", "--temp=0.1"]).loss) == "infonce(0.1)"
    assert str(parse(["--preset=own-text", "--temp", "0.1"]).loss) == "dcl(0.1)"
    for words, said in (
        ("--temp=0.1 --loss=infonce(0.05)", "temp: "),
        ("--preset=rule-siglip --temp=0.1", "temp: "),
        ("--temp=-1", "temp: "),
        ("--loss=barlow_twins()", "loss: barlow_twins"),
        ("--loss=queue(0.1,queue_size=8)", "loss: .*is for images"),
    ):
        with pytest.raises(UserError, match=f"^{said}"):
            parse(words.split())


def test_steps_or_epochs_that_are_named_replace_the_length_of_a_preset():
    for flags, length in (
        ([], (1000, 10)),
        (["--max_steps=7"], (7, None)),
        (["--num_train_epochs", "3"], (-1, 3)),
        (["--num_train_epochs=3", "--max_steps=7"], (7, 3)),
    ):
        training = parse(["--preset=small", *flags]).training
        assert (training.max_steps, training.num_train_epochs) == length


def test_misprinted_averages_are_computed_and_said():
    for row in ROWS:
        wrong = row.name in MISPRINTED
        assert average(row.figures("sts")) == (MISPRINTED[row.name] if wrong else row.printed[0])
        assert average(row.figures("transfer")) == row.printed[1]
        assert ("printed" in row.summary()) == wrong
    assert "75.45 (printed 74.84), transfer average 85.77" in ROWS[1].summary()
