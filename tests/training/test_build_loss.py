"""From options to temperatures, rules and objectives, and runs of the program that learn some of it."""

import dataclasses
import importlib.util
import inspect
import json
import sys
import warnings
from typing import get_type_hints

import pytest
import torch
from dystress_text.training.build_loss import build_objective, learned_group, temperature_of_record
from dystress_text.training.constructors import constructor_options, core_classes, parameters
from trainer_cases import make_task, run

from dystress_text import core
from dystress_text.core import registry
from dystress_text.errors import ParameterError
from dystress_text.programs.train import main
from dystress_text.simcse.arguments import parse
from dystress_text.training import settings as training_settings
from dystress_text.training.settings import (
    OBJECTIVES,
    OWNERS,
    PROFILES,
    RULES,
    TEMPERATURE_OPTIONS,
    TEMPERATURES,
    LossSettings,
)


def built(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_objective(LossSettings(**options))


@pytest.mark.parametrize(
    ("options", "objective", "rule", "values"),
    [({}, "InfoNCELoss", "ShiftedCosineTemperature", {"tau_min": 0.05, "tau_max": 0.07}),
     ({"temp": 0.1, "objective": "ntxent"}, "NTXentLoss", "ConstantTemperature", {"tau": 0.1}),
     ({"temperature": "scheduled"}, "InfoNCELoss", "ScheduledTemperature", {"half_period": 0.1, "unit": "run"}),
     ({"rule": "hcl", "beta": 0.5, "temp": 0.5}, "InfoNCELoss", "HardNegativeRule", {"beta": 0.5, "tau": 0.5}),
     ({"rule": "adnce", "mu": 0.7, "sigma": 0.5}, "InfoNCELoss", "ADNCERule", {"mu": 0.7, "sigma": 0.5}),
     ({"temperature": "temo", "alpha": 0.05}, "InfoNCELoss", "TeMoTemperature", {"tau_0": 0.01, "alpha": 0.05}),
     ({"objective": "rince", "temp": 0.1, "q": 0.3}, "RINCELoss", "ConstantTemperature", {"tau": 0.1}),
     ({"objective": "siglip", "logit_bias": -4.0}, "SigLIPLoss", None, {"logit_scale": 10.0, "logit_bias": -4.0})],
)  # fmt: skip
def test_options_make_the_rule(options, objective, rule, values):
    found = built(**options)
    assert type(found).__name__ == objective
    assert rule is None or type(found.temperature).__name__ == rule
    assert {name: pytest.approx(found.temperature.values()[name]) for name in values} == values
    assert getattr(found, "q", options.get("q")) == options.get("q")


def test_every_name_builds_and_its_constructors_options_are_settings():
    for name in OBJECTIVES:
        assert type(built(objective=name)).__name__ == OBJECTIVES[name]
    for name in RULES:
        assert type(built(rule=name)) is core.InfoNCELoss
    assert OWNERS["sigma"] == ("adnce", "dclw")
    assert set(TEMPERATURE_OPTIONS) | set(OWNERS) <= set(vars(LossSettings()))


def test_what_is_read_from_the_sources_is_what_inspection_finds():
    classes = core_classes()
    assert {name: cls.__name__ for name, cls in registry.TEMPERATURES.items()} == TEMPERATURES
    assert [n for n, cls in registry.TEMPERATURES.items() if issubclass(cls, core.ProfileTemperature)] == PROFILES
    for name in (*TEMPERATURES.values(), *RULES.values(), *OBJECTIVES.values()):
        constructor = getattr(core, name)
        found = inspect.signature(constructor).parameters
        assert list(parameters(name, classes)) == [key for key in found if key != "options"], name
        kinds = get_type_hints(constructor.__init__)
        for key, option in constructor_options({"it": name}, classes).items():
            assert kinds[key] in (option.kind, option.kind | None)


class OwnTemperature(core.ProfileTemperature):
    """Of a user: one parameter learns, one is frozen, one is not used.

    Args:
        power: of the size of s.
    """

    def __init__(self, tau_min: float = 0.05, tau_max: float = 0.06, power: float = 2.0, tau: float = 1.0) -> None:
        self.power = power
        super().__init__(tau_min, tau_max)
        self.tau = torch.nn.Parameter(torch.tensor(tau))
        self.frozen = torch.nn.Parameter(torch.tensor(1.0), requires_grad=False)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def shape(self, similarity):
        return similarity.abs() ** self.power

    def forward(self, similarity):
        tau = super().forward(similarity)
        return tau * self.tau * self.frozen if hasattr(self, "frozen") else tau


class FrozenTemperature(OwnTemperature):
    def __init__(self, tau_min: float = 0.05, tau_max: float = 0.06) -> None:
        super().__init__(tau_min, tau_max)
        self.requires_grad_(False)


class NeedyTemperature(OwnTemperature):
    def __init__(self, width: float) -> None:
        super().__init__(tau_min=width)


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(registry, "TEMPERATURES", registry.TEMPERATURES.copy())
    monkeypatch.setattr("dystress_text.training.build_loss.TEMPERATURES", registry.TEMPERATURES)
    for name, kind in {"own": OwnTemperature, "frozen": FrozenTemperature, "needy": NeedyTemperature}.items():
        core.register_temperature(name)(kind)


def test_a_temperature_of_ones_own_is_the_same_before_and_after_the_settings_are_imported(own, monkeypatch):
    @core.register_temperature("decorated")
    class DecoratedTemperature(OwnTemperature):
        def __init__(self, steepness: float = 1.0) -> None:
            super().__init__(power=steepness)

    spec = importlib.util.spec_from_file_location("settings_again", training_settings.__file__)
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "settings_again", again)
    spec.loader.exec_module(again)
    assert [f.name for f in dataclasses.fields(again.LossSettings)] == [
        f.name for f in dataclasses.fields(LossSettings)
    ]
    assert (again.TEMPERATURES, again.PROFILES) == (TEMPERATURES, PROFILES)
    for kind in (LossSettings, again.LossSettings):
        found = build_objective(kind(temperature="own", tau_max=0.07)).temperature
        assert found.values() == {"tau_min": 0.05, "tau_max": 0.07, "power": 2.0, "tau": 1.0}
        with pytest.raises(ParameterError, match=r"temperature: temperature 'needy' takes width: missing"):
            build_objective(kind(temperature="needy"))
    with pytest.raises(ValueError, match="temperature 'cosine' is CosineTemperature already: register another name"):
        core.register_temperature("cosine")(OwnTemperature)
    core.register_temperature("own")(type("OwnTemperature", (OwnTemperature,), {"__qualname__": "OwnTemperature"}))


@pytest.mark.parametrize("name", ["own", "frozen"])
@pytest.mark.parametrize("more", [[], ["--rule=hcl"], ["--grad_cache_chunk=4"]])
def test_only_what_can_learn_in_it_does(name, more, own, flags, tmp_path, capsys):
    assert main([*flags, f"--temperature={name}", "--eval_set=none", *more]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert ("learned_temperature" in record) == (name == "own")
    if name == "own":
        assert abs(record["learned_temperature"]["tau"] - 1) > 1e-4
        assert temperature_of_record(record).values()["tau"] == record["learned_temperature"]["tau"]
    elif not more:
        assert main([*flags, "--temperature=frozen", "--overwrite_output_dir", "--temperature_learning_rate=0.1"]) == 2
        assert "--temperature_learning_rate: has no effect" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [({"beta": 1.0}, "beta: only hcl takes it"),
     ({"temp": 0.1, "temperature": "cosine"}, "temp: temperature 'cosine' takes tau_min, tau_max only"),
     ({"tau_min": 0.3, "tau_max": 0.2}, "temperature: tau_min must not exceed tau_max"),
     ({"rule": "adnce", "objective": "dclw", "sigma": 1.0}, "rule: adnce does not go with objective dclw"),
     ({"rule": "adnce", "objective": "dcl", "weigh_positive": True}, "weigh_positive: infonce and ntxent"),
     ({"temperature": "scheduled", "learn_temperature": True}, "learn_temperature: .*nothing to learn")],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_by_name(options, message):
    with pytest.raises(ParameterError, match=f"^{message}") as caught:
        built(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "names"),
    [(["--temp=0.05", "--learn_temperature"], {"tau"}),
     (["--tau_min=0.05", "--tau_max=0.2", "--learn_temperature"], {"tau_min", "tau_max"}),
     (["--objective=siglip"], {"logit_scale", "logit_bias"})],
)  # fmt: skip
def test_what_is_learned_moves_and_is_recorded(flags, tmp_path, options, names):
    assert main([*flags, *options, "--eval_set=none", "--temperature_learning_rate=0.05"]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    learned = record["learned_temperature"]
    assert set(learned) == names
    for name, value in learned.items():
        assert abs(value - record["temperature_parameters"][name]) > 1e-4
    again = temperature_of_record(record)
    assert {name: pytest.approx(again.values()[name], abs=1e-5) for name in names} == learned


def test_one_that_went_to_its_bound_can_be_read_back():
    settings = parse(["--tau_max=0.2", "--learn_temperature", "--temperature_learning_rate=0.05"])
    learned = {"tau_min": 0.01, "tau_max": 0.01}
    rebuilt = temperature_of_record({"settings": settings.options(), "learned_temperature": learned})
    assert float(rebuilt(torch.tensor(0.5))) == pytest.approx(0.01)


def trained(corpus, folder, scores=(), **options):
    """A run that learns a constant temperature; its summary, and the temperature before and after."""
    loss = LossSettings(temp=0.05, learn_temperature=True, temperature_learning_rate=0.01)
    task, scores = make_task(corpus), iter(scores)
    task.objective = build_objective(loss)
    task.evaluate = lambda: {"score": next(scores)} if options.get("eval_steps") else {}
    before = task.objective.temperature.free.detach().clone()
    learned = learned_group(task.objective, loss)
    summary, trainer = run(task, corpus, folder, learned, lr_scheduler_type="constant", **options)
    trainer.close()
    return summary, before, task.objective.temperature


def test_it_is_recorded_as_the_kept_model_had_it(corpus, tmp_path):
    """The first of three models is the best one."""
    options = {"eval_steps": 1, "metric_for_best_model": "score"}
    best, _, last = trained(corpus, tmp_path / "3", [3.0, 2.0, 1.0], max_steps=3, **options)
    one, _, first = trained(corpus, tmp_path / "1", [3.0], max_steps=1, **options)
    assert best.best_step == 1
    assert best.learned == one.learned == {"tau": first.values()["tau"]}
    assert best.learned != {"tau": last.values()["tau"]}


def test_its_step_is_that_of_adam_alone(corpus, tmp_path):
    """Clipping and weight decay of the network do not reach it."""
    options = {"max_steps": 1, "weight_decay": 0.5, "max_grad_norm": 1e-6, "learning_rate": 1e-9}
    _, before, after = trained(corpus, tmp_path, **options)
    moved = (after.free.detach() - before).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-3, atol=0)  # Adam's first step is its rate
