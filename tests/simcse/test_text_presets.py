"""Every row of the paper's text table is a preset that builds the row's temperature; the list is one line each."""

import warnings
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from dystress_text.core.objectives import InfoNCELoss, MACLLoss
from dystress_text.core.temperature import ConstantTemperature
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.presets import main as list_presets
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.objective import TEXT
from dystress_text.simcse.paper import ROWS
from dystress_text.simcse.presets import CONTROLS, PRESETS, SIMCSE_MODELS, STS_ROWS, TABLES
from dystress_text.simcse.run import paper_row
from dystress_text.simcse.settings import TextSettings
from dystress_text.training.build_loss import build_objective, build_temperature
from dystress_text.training.presets import listing, said_of
from dystress_text.training.settings import EngineSettings, LossSettings

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {
    field.name for group in (TextSettings, EvaluationSettings, LossSettings, EngineSettings) for field in fields(group)
}

TEMPERATURES = {
    "sts-constant-0.05": "ConstantTemperature(tau=0.05)",
    "sts-cosine-0.03-0.05": "CosineTemperature(tau_min=0.03, tau_max=0.05)",
    "sts-shifted-0.2-0.03-0.05": "ShiftedCosineTemperature(tau_min=0.03, tau_max=0.05, shift=-0.2, scale=0.6)",
    "sts-shifted-0.6-0.03-0.05": "ShiftedCosineTemperature(tau_min=0.03, tau_max=0.05, shift=-0.6, scale=0.8)",
    "sts-shifted-0.4-0.02-0.05": "ShiftedCosineTemperature(tau_min=0.02, tau_max=0.05, shift=-0.4, scale=0.7)",
    "sts-shifted-0.4-0.05-0.07": "ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07, shift=-0.4, scale=0.7)",
    "sts-constant-0.07": "ConstantTemperature(tau=0.07)",
}


def objective(name, *more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several of the paper's profiles have a falling logit
        return build_objective(parse([f"--preset={name}", *more]).loss, TEXT)


@pytest.mark.parametrize("name", PRESETS)
def test_options_exist_and_fit_each_other(name):
    assert set(PRESETS[name].settings) <= OPTIONS
    assert parse([f"--preset={name}"]).preset == name
    objective(name)


def test_every_row_is_a_preset_and_named_in_it():
    assert list(STS_ROWS.values()) == [row.name for row in ROWS]
    for name, row in zip(STS_ROWS, ROWS, strict=True):
        assert PRESETS[name].about == row.about()
    assert set(TABLES["sts"]) == set(STS_ROWS)
    assert set(TABLES["controls"]) == set(CONTROLS)


@pytest.mark.parametrize("name", TEMPERATURES)
def test_the_temperature_is_the_names(name):
    assert repr(objective(name).temperature) == TEMPERATURES[name]
    assert type(objective(name)) is InfoNCELoss


PUBLISHED = {  # the README of SimCSE's repository: batch, learning rate, average
    "unsupervised-bert-base": ("bert-base-uncased", 64, 3e-5, "76.25"),
    "unsupervised-bert-large": ("bert-large-uncased", 64, 1e-5, "78.41"),
    "unsupervised-roberta-base": ("roberta-base", 512, 1e-5, "76.57"),
    "unsupervised-roberta-large": ("roberta-large", 512, 3e-5, "78.90"),
    "supervised-bert-base": ("bert-base-uncased", 512, 5e-5, "81.57"),
    "supervised-bert-large": ("bert-large-uncased", 512, 1e-5, "82.21"),
    "supervised-roberta-base": ("roberta-base", 512, 5e-5, "82.52"),
    "supervised-roberta-large": ("roberta-large", 512, 1e-5, "83.76"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_simcses_models_have_their_recipes(name):
    encoder, batch, rate, average = PUBLISHED[name]
    settings = parse([f"--preset={name}"])
    text, engine = settings.text, settings.engine
    assert (text.model_name_or_path, engine.train_batch_size, engine.learning_rate) == (encoder, batch, rate)
    assert average in PRESETS[name].about
    supervised = name.startswith("supervised")
    assert (text.supervised, engine.num_train_epochs) == ((True, 3) if supervised else (False, 1))
    assert repr(objective(name).temperature) == "ConstantTemperature(tau=0.05)"
    assert (text.pooler_type, text.max_seq_length, text.drop_duplicates) == ("cls", 32, False)


SCRIPTS = {  # what run_unsup_example.sh and run_sup_example.sh set, and defaults of 4.2.1 that they leave
    "max_seq_length": 32, "eval_steps": 125, "pooler_type": "cls", "lr_scheduler_type": "linear", "warmup_ratio": 0.0,
    "weight_decay": 0.0, "gradient_accumulation_steps": 1, "seed": 42, "eval_set": "stsb_dev", "do_mlm": False,
    "drop_duplicates": False, "mixed_precision": "auto_fp16", "bidirectional": False, "hard_negative_weight": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("name", ["paper", *STS_ROWS, *SIMCSE_MODELS])
def test_presets_set_what_its_scripts_set(name):
    options = parse([f"--preset={name}"]).options()
    assert {option: options[option] for option in SCRIPTS} == SCRIPTS
    assert not {"mlp_only_train", "mlp_head", "dropout"} & set(PRESETS[name].settings)  # as SimCSE by default
    if name in ("paper", *STS_ROWS, "unsupervised-bert-base", "supervised-bert-base"):  # one line each
        supervised = name.startswith("supervised")
        recipe = ("bert-base-uncased", 512, 5e-5, 3, 4.0) if supervised else ("bert-base-uncased", 64, 3e-5, 1, 1.0)
        names = ("model_name_or_path", "train_batch_size", "learning_rate", "num_train_epochs", "max_grad_norm")
        assert tuple(options[option] for option in names) == recipe


def gradient(z, loss):
    """Of a loss of views (3, n, dim)."""
    z = z.clone().requires_grad_()
    loss(z).backward()
    return z.grad


def test_four_processes_of_simcse_send_a_quarter_of_our_gradient():
    """Each has a loss of all rows and keeps the gradient of its own; DDP averages. Clipped at 1, ours is at 4."""
    views = torch.randn(3, 8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def simcse(z):
        unit = z / z.norm(dim=-1, keepdim=True)
        logits = unit[0] @ torch.cat([unit[1], unit[2]]).T / 0.05
        return torch.nn.functional.cross_entropy(logits, torch.arange(8))

    def of_rank(z, rank):
        own = torch.arange(8) // 2 == rank
        return simcse(torch.where(own[None, :, None], z, z.detach()))

    averaged = sum(gradient(views, lambda z, r=rank: of_rank(z, r)) for rank in range(4)) / 4
    ours = gradient(views, lambda z: InfoNCELoss(ConstantTemperature(0.05))(*z))
    torch.testing.assert_close(averaged, ours / 4, rtol=1e-10, atol=1e-14)

    def clipped(gradient, most):
        return gradient * min(1, most / float(gradient.norm()))

    ours *= 40 / ours.norm()
    torch.testing.assert_close(clipped(ours / 4, 1.0), clipped(ours, 4.0) / 4)


def test_macl_is_the_reweighting_with_the_adaptive_temperature():
    macl = objective("sts-macl")
    assert isinstance(macl, MACLLoss)
    assert repr(macl.temperature) == repr(objective("paper", "--objective=macl").temperature)


BEST = "Table stsresall, row DySTreSS* 0.05/0.07"


@pytest.mark.parametrize(
    ("flags", "row", "differs"),
    [([], BEST, ""),
     (["--temperature=shifted_cosine", "--tau_min=0.05", "--seed=1", "--output_dir=other"], BEST, ""),
     (["--preset=sts-macl", "--rows=ntxent", "--per_device_train_batch_size=32"],
      "Table stsresall, row MACL (repro.)", "--rows ntxent (row: infonce)"),
     (["--preset=sts-macl", "--per_device_train_batch_size=64"], "Table stsresall, row MACL (repro.)",
      "--train_batch_size 128 (row: 64)"),
     (["--per_device_train_batch_size=32", "--temp=0.05"], BEST,
      "--temperature ConstantTemperature(tau=0.05) (row: ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07, "
      "shift=-0.4, scale=0.7))"),
     (["--per_device_train_batch_size=32", "--train_file=a.txt", "--eval_steps=5", "--eval_set", "mini_sts"], BEST,
      "--train_file a.txt (row: None), --eval_set mini_sts (row: stsb_dev), --eval_steps 5 (row: 125)")],
)  # fmt: skip
def test_a_run_says_in_what_it_differs_from_its_row(flags, row, differs):
    settings = parse(flags)
    entry = paper_row(settings, build_temperature(settings.loss, TEXT), 2)
    assert entry == {"paper": {"rows": [row], "differs": differs}}
    assert said_of(entry) == (f"{row}; differs from the row in {differs}" if differs else row)


def test_a_preset_without_a_row_says_nothing_of_the_paper():
    settings = parse(["--preset=sts-constant-0.07"])
    assert paper_row(settings, build_temperature(settings.loss, TEXT), 1) == {}
    assert said_of({}) == ""


def test_the_default_is_the_best_row():
    assert repr(objective("paper").temperature) == TEMPERATURES["sts-shifted-0.4-0.05-0.07"]


def test_a_temperature_on_the_command_line_replaces_the_rows():
    assert repr(objective("sts-shifted-0.2-0.03-0.05", "--temp=0.1").temperature) == "ConstantTemperature(tau=0.1)"


def test_the_list_has_a_line_for_each_and_vision_lists_its_own(capfd):
    from vision.pretraining.presets import PRESETS as IMAGES

    assert list_presets([]) == 0
    text, images = capfd.readouterr().out.removesuffix("\n").split("\n\n")
    assert text.split("\n")[1:] == listing(PRESETS).split("\n")
    assert images.split("\n")[1:] == listing(IMAGES).split("\n")
    assert len(listing(PRESETS).split("\n")) == len(PRESETS)


def test_help_says_the_defaults_of_the_preset(capsys):
    for preset, shown in (("paper", "Default 3e-05."), ("supervised-bert-base", "Default 5e-05.")):
        with pytest.raises(SystemExit):
            parse([f"--preset={preset}", "--help"])
        told = " ".join(capsys.readouterr().out.split())
        assert f"Peak learning rate of AdamW. {shown}" in told
        assert "Weight decay of AdamW; not on biases and normalisation layers. Default 0.0." in told
        assert "Turns --packing off." in told
        for group in ("encoder and data:", "evaluation:", "objective and temperature:", "training loop:"):
            assert group in told
