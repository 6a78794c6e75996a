"""From options to rules and objectives, and runs of the program with rules that have a state."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file

from dystress_text.core import (
    ADNCERule,
    ConstantTemperature,
    DCLLoss,
    DebiasedRule,
    FocalRule,
    HardNegativeRule,
    HardnessRule,
    InfoNCELoss,
    NTXentLoss,
    RINCELoss,
    RobustTemperature,
    SampleTemperature,
    ShiftedCosineTemperature,
    SigLIPLoss,
    TeMoTemperature,
)
from dystress_text.errors import UserError
from dystress_text.simcse.objective import TEXT, temperature_of_record
from dystress_text.simcse.presets import RULE_PRESETS
from dystress_text.train import main
from dystress_text.training.build_loss import build_objective, learned_group
from dystress_text.training.settings import RULES, LossSettings


def built(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_objective(LossSettings(**options), TEXT)


@pytest.mark.parametrize(
    ("options", "objective", "rule", "values"),
    [
        ({"rule": "debiased"}, InfoNCELoss, DebiasedRule, {"tau_plus": 0.1, "tau_min": 0.05, "tau_max": 0.07}),
        ({"rule": "hcl", "beta": 0.5, "temp": 0.5}, InfoNCELoss, HardNegativeRule, {"beta": 0.5, "tau": 0.5}),
        ({"rule": "focal", "margin": 0.2, "objective": "ntxent"}, NTXentLoss, FocalRule, {"margin": 0.2}),
        ({"rule": "adnce", "mu": 0.7, "sigma": 0.5}, InfoNCELoss, ADNCERule, {"mu": 0.7, "sigma": 0.5}),
        ({"rule": "hardness", "hardness_strength": 5.0}, InfoNCELoss, HardnessRule, {"hardness_strength": 5.0}),
        ({"temperature": "temo", "alpha": 0.05}, InfoNCELoss, TeMoTemperature, {"tau_0": 0.01, "alpha": 0.05}),
        (
            {"temperature": "robust", "effective_negatives": 4.0, "temp": 0.1, "objective": "dcl"},
            DCLLoss, RobustTemperature, {"effective_negatives": 4.0, "tau": 0.1},
        ),
        ({"temperature": "isogclr", "rho": 0.3}, InfoNCELoss, SampleTemperature, {"rho": 0.3, "tau": 0.1}),
        ({"objective": "rince", "temp": 0.1}, RINCELoss, ConstantTemperature, {"tau": 0.1}),
        ({"objective": "siglip", "logit_bias": -4.0}, SigLIPLoss, None, {"logit_scale": 10.0, "logit_bias": -4.0}),
    ],
)  # fmt: skip
def test_options_make_the_rule(options, objective, rule, values):
    found = built(**options)
    assert type(found) is objective
    assert rule is None or type(found.temperature) is rule
    assert {name: pytest.approx(found.temperature.values()[name]) for name in values} == values


def test_every_rule_has_a_name_and_the_presets_build():
    for name in RULES:
        assert type(built(rule=name).temperature.temperature) is ShiftedCosineTemperature
    for name, (_, settings) in RULE_PRESETS.items():
        assert learned_group(built(**settings), LossSettings(**settings)) is None or name in (
            "rule-robust", "rule-siglip",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 1.0}, "--beta: only hcl takes it"),
        ({"tau_plus": 0.1, "rule": "focal"}, "--tau_plus: only debiased and hcl take it"),
        ({"sigma": 1.0}, "--sigma: only dclw and adnce take it"),
        ({"rule": "adnce", "objective": "dclw", "sigma": 1.0}, "--rule adnce: does not go with --objective dclw"),
        ({"rule": "hcl", "beta": -1.0}, r"--beta: beta must lie in \[0, inf\), got -1.0"),
        ({"rule": "debiased", "temperature": "robust"}, "--rule: DebiasedRule cannot wrap RobustTemperature"),
        ({"objective": "rince", "q": 2.0}, r"--q: q must lie in \(0, 1\], got 2.0"),
        ({"objective": "siglip", "temp": 0.1}, "--temp: objective 'siglip' has a learned scale and bias of its own"),
        ({"objective": "siglip", "rule": "hcl"}, "--rule: objective 'siglip' has a learned scale and bias"),
        ({"objective": "siglip", "logit_scale": -1.0}, "--logit_scale: logit_scale must be a positive number"),
        ({"temperature": "robust", "effective_negatives": 0.5}, "--effective_negatives must be at least 1"),
        ({"temperature": "isogclr", "shift": 0.1}, "temperature 'isogclr' takes --temp, --rho, --tau_min, --tau_max"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_a_line(options, message):
    with pytest.raises(UserError, match=message) as caught:
        built(**options)
    assert "\n" not in str(caught.value)


# ---- in runs ---------------------------------------------------------------------------------------------------------


def record_of(folder):
    return json.loads((folder / "out" / "run.json").read_text())


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--temperature=robust", "--effective_negatives=2"], {"tau"}),
        (["--objective=siglip"], {"logit_scale", "logit_bias"}),
    ],
)
def test_what_a_rule_learns_is_trained_and_recorded(flags, tmp_path, options, names):
    assert main([*flags, *options, "--eval_set=none", "--temperature_learning_rate=0.01"]) == 0
    record = record_of(tmp_path)
    learned = record["learned_temperature"]
    assert set(learned) == names
    for name, value in learned.items():
        assert abs(value - record["temperature_parameters"][name]) > 1e-3
    again = temperature_of_record(record)
    assert {name: pytest.approx(again.values()[name], abs=1e-5) for name in names} == learned


def test_a_broken_line_is_trained_and_read_again(flags, tmp_path):
    assert main([*flags, "--temperature=piecewise_linear", "--knots", "-0.2:0.05", "0.4:0.07", "--eval_set=none"]) == 0
    record = record_of(tmp_path)
    assert record["temperature_parameters"] == {"knots": "-0.2:0.05 0.4:0.07"}
    assert temperature_of_record(record).values() == {"knots": "-0.2:0.05 0.4:0.07"}


def test_too_few_negatives_end_the_run_in_a_line(flags, capsys):
    assert main([*flags, "--temperature=robust", "--effective_negatives=20", "--eval_set=none"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("dystress train: error: --effective_negatives: effective_negatives is 20, and an anchor of")


def test_a_checkpoint_holds_the_temperatures_of_the_samples(flags, tmp_path):
    options = [*flags, "--temperature=isogclr", "--objective=dcl", "--eval_set=none", "--save_steps=3"]
    assert main(options) == 0
    (checkpoint,) = (tmp_path / "out").glob("checkpoint-*")
    (file,) = [f for f in checkpoint.glob("*.safetensors") if "temperature.taus" in load_file(f)]
    state = load_file(file)
    seen = ~state["temperature.averages"].isnan()
    assert int(seen.sum()) == 24  # three batches of eight
    assert (state["temperature.taus"][~seen] == torch.tensor(0.1)).all()
    assert (state["temperature.taus"][seen] != torch.tensor(0.1)).any()
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert main([*options, "--resume_from_checkpoint"]) == 0  # the last three steps once more, from that state
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
