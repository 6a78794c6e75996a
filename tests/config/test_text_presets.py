"""Presets have options that fit, what their scripts and papers say, and a line each; the paper's
misprints are said.
"""

import re
import warnings
from dataclasses import fields

import pytest

from dystress_text.config.arguments import COMMON, parse
from dystress_text.config.paper import ROWS
from dystress_text.config.presets import PRESETS, SIMCSE_MODELS, TABLES
from dystress_text.config.settings import PROGRAM
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import average
from dystress_text.training.presets import describe_row, paper_row
from dystress_text.training.run_record import PaperRow

DEFAULT = "infonce(shifted_cosine(0.05, 0.07, shift=-0.4))"
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
        ("--temp=0.1 --loss=infonce(0.05)", "temp: the loss has a temperature already"),
        ("--preset=rule-siglip --temp=0.1", "temp: .* has no temperature to set"),
        ("--temp=-1", "temp: a temperature is a number above 0"),
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
        assert ("printed" in row.about()) == wrong
    assert "75.45 (printed 74.84), transfer average 85.77" in ROWS[1].about()


# what run_unsup_example.sh and run_sup_example.sh set, and defaults of 4.2.1 that they leave
SCRIPTS = {
    "max_seq_length": 32,
    "eval_steps": 125,
    "pooler_type": "cls",
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.0,
    "weight_decay": 0.0,
    "gradient_accumulation_steps": 1,
    "seed": 42,
    "eval_set": "stsb_dev",
    "do_mlm": False,
    "drop_duplicates": False,
    "mixed_precision": "auto_fp16",
    "mlp_only_train": None,
    "mlp_head": None,
    "dropout": None,
}


@pytest.mark.parametrize("name", ["paper", *TABLES["sts"], *SIMCSE_MODELS])
def test_presets_set_what_its_scripts_set(name):
    options = parse([f"--preset={name}"]).options()
    assert {option: options[option] for option in SCRIPTS} == SCRIPTS
    supervised = (options["supervised"], options["num_train_epochs"], options["max_grad_norm"])
    assert supervised == ((True, 3, 4.0) if name.startswith("supervised") else (False, 1, 1.0))


BEST = "Table stsresall, row DySTreSS* 0.05/0.07"


@pytest.mark.parametrize(
    ("flags", "row", "differs"),
    [
        (["--seed=1", "--output_dir=other"], BEST, ""),
        (
            ["--preset=sts-macl", "--loss=macl(0.05, alpha=2, a_0=0.5)", "--train_batch_size=32"],
            "Table stsresall, row MACL (repro.)",
            "--loss macl(0.05, alpha=2, a_0=0.5) (row: macl(0.05, alpha=2, a_0=0.8)), "
            "--train_batch_size 32 (row: 64)",
        ),
        (
            ["--temp=0.05", "--train_file=a.txt"],
            BEST,
            f"--train_file a.txt (row: None), --loss infonce(0.05) (row: {DEFAULT})",
        ),
    ],
)
def test_a_run_says_in_what_it_differs_from_its_row(flags, row, differs):
    settings = parse(flags)
    entry = paper_row(PROGRAM, settings.options())
    assert entry["paper"] == {"rows": [row], "differs": differs}
    assert describe_row(PaperRow(**entry["paper"])) == (
        f"{row}; differs from the row in {differs}" if differs else row
    )


def test_the_list_has_a_line_for_each_and_help_says_the_defaults_of_the_preset(capfd):
    with pytest.raises(SystemExit):
        parse(["--list_presets"])
    listed = capfd.readouterr().out.splitlines()
    assert listed == PROGRAM.listing().splitlines()
    assert [line.split()[0] for line in listed[:3]] == ["own-text", "quickstart", "small"]
    for preset, shown in (("paper", "Default 3e-05."), ("supervised-bert-base", "Default 5e-05.")):
        with pytest.raises(SystemExit):
            parse([f"--preset={preset}", "--help", "all"])
        told = " ".join(capfd.readouterr().out.split())
        assert f"Peak learning rate of AdamW. {shown}" in told
        assert ("--max_steps N Optimiser" in told, "--max-steps" in told) == (True, False)


def test_help_alone_has_the_usual_options(capfd):
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = capfd.readouterr().out
    assert len(told.splitlines()) < 100
    assert set(re.findall(r"^  (?:-h \[all\], )?--(\w+)", told, re.M)) == {
        *COMMON,
        "preset",
        "list_presets",
        "temp",
        "help",
    }
