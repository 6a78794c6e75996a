"""Presets have options that fit, and options on the command line replace theirs."""

import json
import warnings
from dataclasses import fields

import pytest

from dystress_text.errors import UserError
from dystress_text.finetuning.arguments import parse
from dystress_text.finetuning.presets import PRESETS
from dystress_text.finetuning.settings import PROGRAM, FineTuningSettings
from dystress_text.programs import evaluate, sweep
from dystress_text.training.run_record import RunRecord


def test_every_preset_has_known_options_that_fit_and_flags_override_it():
    known = {field.name for group in PROGRAM.groups for field in fields(group)}
    for name, preset in PRESETS.items():
        assert set(preset.settings) <= known
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several of the paper's profiles have a falling logit
            settings = parse([f"--preset={name}", "--learning_rate", "7e-4"])
        assert settings.preset == name
        assert settings.training.learning_rate == 7e-4
        assert str(settings.loss) == settings.options()["loss"] == preset.settings["loss"]


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
    with pytest.raises(UserError, match=r"^tempp \(did you mean temp\?\): "):
        FineTuningSettings.of({"tempp": 0.1})


@pytest.mark.parametrize(("old", "new"), [("eval_file", "pairs"), ("eval_retrieval", "retrieval")])
def test_one_name_for_the_data_of_an_evaluation(old, new):
    for program in (parse, evaluate.make_parser().parse_args, sweep.make_parser().parse_args):
        with pytest.raises(UserError, match=rf"--{old} \(here it is --{new}\)"):
            program([f"--{old}=x"])
    with pytest.raises(UserError, match=rf"^{old} \(here it is {new}\)"):
        FineTuningSettings.of({old: "x"})
    assert getattr(parse([f"--{new}=x"]).evaluation, new) == ["x"]


def test_a_run_carries_its_loss_once():
    settings = parse(["--loss=infonce(0.050)"])
    assert not hasattr(settings.text, "loss")
    record = RunRecord(settings=settings.options())
    assert record.loss == "infonce(0.05)"
    assert json.dumps(record.to_json()).count("infonce(0.05)") == 1
    assert RunRecord.from_json(record.to_json()).loss == record.loss


def test_steps_or_epochs_that_are_named_replace_the_length_of_a_preset():
    for flags, length in (
        ([], (1000, 10)),
        (["--max_steps=7"], (7, None)),
        (["--num_train_epochs", "3"], (-1, 3)),
        (["--num_train_epochs=3", "--max_steps=7"], (7, 3)),
    ):
        training = parse(["--preset=small", *flags]).training
        assert (training.max_steps, training.num_train_epochs) == length
