"""Presets have options that fit, what their scripts and papers say, and a line each; the paper's misprints are said."""

import re
import warnings
from dataclasses import fields

import pytest
from dystress_text.training.build_loss import build_objective, build_rule

from dystress_text.core.objectives import InfoNCELoss, MACLLoss
from dystress_text.evaluation.catalogue import average
from dystress_text.simcse.arguments import COMMON, GROUPS, parse
from dystress_text.simcse.paper import ROWS
from dystress_text.simcse.presets import PRESETS, SIMCSE_MODELS, TABLES
from dystress_text.training.presets import Preset, listing, paper_row, said_of

DEFAULT = "ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07, shift=-0.4, scale=0.7)"
MISPRINTED = {"MACL (repro.)": 75.45, "DySTreSS 0.03/0.05": 75.46, "DySTreSS* 0.03/0.05": 75.97}


def objective(name, *more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several of the paper's profiles have a falling logit
        return build_objective(parse([f"--preset={name}", *more]).loss)


def test_every_preset_has_known_options_that_fit_and_flags_override_it():
    known = {field.name for group in GROUPS for field in fields(group)}
    for name, preset in PRESETS.items():
        assert set(preset.settings) <= known
        settings = parse([f"--preset={name}", "--learning_rate", "7e-4"])
        assert (settings.preset, settings.engine.learning_rate) == (name, 7e-4)
        objective(name)


def test_the_temperature_is_the_names_and_one_on_the_command_line_replaces_it():
    assert type(objective("paper")) is InfoNCELoss
    for name, expected in (("paper", DEFAULT), ("sts-constant-0.07", "ConstantTemperature(tau=0.07)")):
        assert repr(objective(name).temperature) == expected
    assert repr(objective("sts-shifted-0.2-0.03-0.05", "--temp=0.1").temperature) == "ConstantTemperature(tau=0.1)"
    assert objective("sts-constant-0.07", "--train_file=a--temp.txt").temperature.tau == 0.07  # not in a value
    macl = objective("sts-macl")
    assert isinstance(macl, MACLLoss)
    assert repr(macl.temperature) == repr(objective("paper", "--objective=macl").temperature)


def test_steps_or_epochs_that_are_named_replace_the_length_of_a_preset():
    for flags, length in (
        ([], (1000, 10, 1)),
        (["--max_steps=7"], (7, None, 1)),
        (["--num_train_epochs", "3"], (-1, None, 3)),
        (["--num_train_epochs=3", "--max_steps=7"], (7, None, 3)),
    ):
        engine = parse(["--preset=small", *flags]).engine
        assert (engine.max_steps, engine.max_epochs, engine.num_train_epochs) == length


def test_what_belongs_to_a_choice_of_a_preset_leaves_with_it(monkeypatch):
    own = PRESETS["own-text"]
    crops = own.settings | {"crop_min": 0.1}
    monkeypatch.setitem(PRESETS, "own-text", Preset(own.about, crops, own.rows))
    flags = ["--preset=own-text", "--temp", "0.05", "--objective", "infonce", "--views"]
    assert [parse([*flags, views]).text.crop_min for views in ("crop", "dropout")] == [0.1, 0.2]


def test_misprinted_averages_are_computed_and_said():
    for row in ROWS:
        wrong = row.name in MISPRINTED
        assert average(row.figures("sts")) == (MISPRINTED[row.name] if wrong else row.printed[0])
        assert average(row.figures("transfer")) == row.printed[1]
        assert ("printed" in row.about()) == wrong
    assert "75.45 (printed 74.84), transfer average 85.77" in ROWS[1].about()


SCRIPTS = {  # what run_unsup_example.sh and run_sup_example.sh set, and defaults of 4.2.1 that they leave
    "max_seq_length": 32, "eval_steps": 125, "pooler_type": "cls", "lr_scheduler_type": "linear", "warmup_ratio": 0.0,
    "weight_decay": 0.0, "gradient_accumulation_steps": 1, "seed": 42, "eval_set": "stsb_dev", "do_mlm": False,
    "drop_duplicates": False, "mixed_precision": "auto_fp16", "bidirectional": False, "hard_negative_weight": 0.0,
    "mlp_only_train": None, "mlp_head": None, "dropout": None,
}  # fmt: skip


@pytest.mark.parametrize("name", ["paper", *TABLES["sts"], *SIMCSE_MODELS])
def test_presets_set_what_its_scripts_set(name):
    options = parse([f"--preset={name}"]).options()
    assert {option: options[option] for option in SCRIPTS} == SCRIPTS
    supervised = (options["supervised"], options["num_train_epochs"], options["max_grad_norm"])
    assert supervised == ((True, 3, 4.0) if name.startswith("supervised") else (False, 1, 1.0))


BEST = "Table stsresall, row DySTreSS* 0.05/0.07"


@pytest.mark.parametrize(
    ("flags", "row", "differs"),
    [(["--temperature=shifted_cosine", "--tau_min=0.05", "--seed=1", "--output_dir=other"], BEST, ""),
     (["--preset=sts-macl", "--rows=ntxent", "--per_device_train_batch_size=32"],
      "Table stsresall, row MACL (repro.)", "--rows ntxent (row: infonce)"),
     (["--per_device_train_batch_size=64", "--temp=0.05", "--train_file=a.txt", "--eval_set", "mini_sts"], BEST,
      f"--temperature ConstantTemperature(tau=0.05) (row: {DEFAULT}), --train_file a.txt (row: None), "
      "--eval_set mini_sts (row: stsb_dev), --train_batch_size 128 (row: 64)")],
)  # fmt: skip
def test_a_run_says_in_what_it_differs_from_its_row(flags, row, differs):
    settings = parse(flags)
    entry = paper_row(PRESETS[settings.preset], settings, 2, build_rule)
    assert entry["paper"]["rows"] == [row]
    told = entry["paper"]["differs"]
    assert sorted(told.replace("--", "").split(", ")) == sorted(differs.replace("--", "").split(", "))
    assert said_of(entry) == (f"{row}; differs from the row in {told}" if differs else row)


def test_the_list_has_a_line_for_each_and_help_says_the_defaults_of_the_preset(capfd):
    with pytest.raises(SystemExit):
        parse(["--list_presets"])
    assert capfd.readouterr().out.splitlines() == listing(PRESETS).splitlines()
    for preset, shown in (("paper", "Default 3e-05."), ("supervised-bert-base", "Default 5e-05.")):
        with pytest.raises(SystemExit):
            parse([f"--preset={preset}", "--help", "all"])
        told = " ".join(capfd.readouterr().out.split())
        assert f"Peak learning rate of AdamW. {shown}" in told
        assert ("--mlm_weight X" in told, "--mlm-weight" in told) == (True, False)


def test_help_alone_has_the_usual_options(capfd):
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = capfd.readouterr().out
    assert len(told.splitlines()) < 100
    assert set(re.findall(r"^  (?:-h \[all\], )?--(\w+)", told, re.M)) == {*COMMON, "preset", "list_presets", "help"}


@pytest.mark.parametrize(
    ("flags", "shift", "scale"),
    [([], -0.4, 0.7), (["--shift=-0.2"], -0.2, 0.6), (["--shift=-0.2", "--scale=0.7"], -0.2, 0.7)],
)
def test_the_scale_follows_a_shift_on_the_command_line(flags, shift, scale):
    """To (1 + |shift|) / 2, as in the paper's rows, unless it is given too."""
    found = objective("sts-shifted-0.4-0.05-0.07", *flags).temperature
    assert (found.shift, found.scale) == (shift, pytest.approx(scale))
