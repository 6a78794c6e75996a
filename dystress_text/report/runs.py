"""Finished runs of text or images: their records, their curves, and which of them can stand side by
side.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from dystress_text.core.objectives import InfoNCELoss, Objective, loss
from dystress_text.core.other_losses import SigLIPLoss
from dystress_text.core.registry import LossError
from dystress_text.core.run_temperatures import LearnableTemperature
from dystress_text.core.temperature import Temperature
from dystress_text.errors import UserError
from dystress_text.training import run_folder
from dystress_text.training.run_record import FINISHED, RunRecord
from dystress_text.training.settings import CONFIGURATION_FREE

Line = Mapping[str, Any]  # of a log: step, and values by name


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of text or images."""

    folder: Path
    record: RunRecord

    @property
    def seed(self) -> int:
        return int(self.record.settings["seed"])

    @property
    def configuration(self) -> str:
        """The folder's name without the seed."""
        name, _, seed = self.folder.name.rpartition("-seed-")
        return name if seed.isdigit() and name else self.folder.name

    @property
    def settings(self) -> dict[str, Any]:
        """The options that make the configuration."""
        free = {*CONFIGURATION_FREE, "seed"}
        return {name: value for name, value in self.record.settings.items() if name not in free}

    @cached_property
    def loss(self) -> Objective | None:
        """The loss before the first step; None where the user's own class or one of images is not
        loaded here.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training has said that a logit falls
            try:
                return loss(self.record.loss)
            except LossError:
                return None

    @property
    def temperature(self) -> Temperature | None:
        """The temperature of the trained model; None without one."""
        learned = self.record.learned_temperature
        if isinstance(self.loss, SigLIPLoss):
            return self.loss.replace(**learned).temperature
        tau = getattr(self.loss, "temperature", None)
        return tau.fixed(**learned) if isinstance(tau, LearnableTemperature) and learned else tau

    @property
    def constant(self) -> float | None:
        """The temperature of a run with InfoNCE and one constant, which is a baseline; None for
        others.
        """
        values = self.loss.arguments() if isinstance(self.loss, InfoNCELoss) else {}
        tau = values.get("temperature")
        return tau if isinstance(tau, float) and len(values) == 1 else None

    def metrics(self) -> list[Line]:
        return list(run_folder.read_steps(self.folder / run_folder.LOG))

    def similarities(self) -> list[Line]:
        """The lines of the log of similarities; none without --log_similarity."""
        log = self.folder / run_folder.SIMILARITY_LOG
        return list(run_folder.read_steps(log)) if log.is_file() else []


R = TypeVar("R", bound=FinishedRun)


def read_finished(
    folders: Iterable[Path], programs: Sequence[str] = run_folder.PROGRAMS
) -> tuple[list[FinishedRun], list[str]]:
    """The finished runs among folders of runs, of these programs, and the names of those that are
    not finished.
    """
    runs, unfinished = [], []
    for folder in run_folder.run_folders(folders):
        record = run_folder.read_run(folder)
        if record.program not in programs:
            raise UserError(
                f"{folder / run_folder.RECORD} is not the record of a run of {' or '.join(programs)}"
            )
        if record.state == FINISHED:
            runs.append(FinishedRun(folder.absolute(), record))
        else:
            unfinished.append(folder.name)
    if unfinished and not runs:
        raise UserError(f"no finished run: {', '.join(unfinished)}")
    return runs, unfinished


def by_configuration(runs: Iterable[R]) -> dict[str, list[R]]:
    """The runs of each configuration; two with one seed, or with other settings, are refused."""
    configurations: dict[str, list[R]] = {}
    for run in runs:
        others = configurations.setdefault(run.configuration, [])
        for other in others:
            if other.seed == run.seed:
                raise UserError(
                    f"{other.folder} and {run.folder} are one configuration with one seed"
                )
        others.append(run)
        if changed := differing([others[0], run]):
            raise UserError(
                f"{others[0].folder} and {run.folder} have one name and differ in {', '.join(changed)}"
            )
    return configurations


def differing(runs: Sequence[FinishedRun], but: Iterable[str] = ()) -> list[str]:
    """The settings in which runs differ, apart from seed, folders and those in ``but``."""
    values = [run.settings for run in runs]
    names = dict.fromkeys(name for each in values for name in each if name not in but)
    return [name for name in names if any(each.get(name) != values[0].get(name) for each in values)]


def labels(runs: Sequence[FinishedRun]) -> list[str]:
    """A name for each run, which no other one has."""
    names = [run.configuration for run in runs]
    names = [
        f"{name}, seed {run.seed}" if names.count(name) > 1 else name
        for name, run in zip(names, runs, strict=True)
    ]
    return [
        run.folder.name if names.count(name) > 1 else name
        for name, run in zip(names, runs, strict=True)
    ]
