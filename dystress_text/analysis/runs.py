"""Read finished runs of text or images, and group them by configuration."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from dystress_text.cli.options import check_names
from dystress_text.errors import UserError
from dystress_text.losses.objectives import Objective, loss
from dystress_text.losses.other_losses import SigLIPLoss
from dystress_text.losses.registry import LossError
from dystress_text.losses.reweighting import Reweighting
from dystress_text.losses.run_temperatures import LearnableTemperature
from dystress_text.losses.temperature import Temperature
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
        """The folder's name without the seed, or the loss if the folder is named after it."""
        name, _, seed = self.folder.name.rpartition("-seed-")
        if not (seed.isdigit() and name):
            name = self.folder.name
        return self.record.loss if name == as_folder(self.record.loss) else name

    @property
    def settings(self) -> dict[str, Any]:
        """The options that define the configuration."""
        free = {*CONFIGURATION_FREE, "seed"}
        return {name: value for name, value in self.record.settings.items() if name not in free}

    @cached_property
    def loss(self) -> Objective | None:
        """The loss before the first step; None if its class is not loaded here."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # training has given the warning
            try:
                return loss(self.record.loss)
            except LossError:
                return None

    @property
    def temperature(self) -> Temperature | None:
        """The temperature of the trained model; None if the loss has none."""
        learned = self.record.learned_temperature
        if isinstance(self.loss, SigLIPLoss):
            return self.loss.replace(**learned).temperature
        tau = getattr(self.loss, "temperature", None)
        return tau.fixed(**learned) if isinstance(tau, LearnableTemperature) and learned else tau

    @property
    def reweighting(self) -> Reweighting | None:
        """What makes logits of similarities and temperatures; None without one."""
        return getattr(self.loss, "reweighting", None)

    @property
    def constant(self) -> float | None:
        """Return a constant temperature without reweighting; None for other losses."""
        tau = None if self.loss is None else self.loss.arguments().get("temperature")
        return tau if isinstance(tau, float) else None

    def metrics(self) -> list[Line]:
        return list(run_folder.read_steps(self.folder / run_folder.LOG))

    def similarities(self) -> list[Line]:
        """The lines of the similarity log; none without --log_similarity."""
        log = self.folder / run_folder.SIMILARITY_LOG
        return list(run_folder.read_steps(log)) if log.is_file() else []


R = TypeVar("R", bound=FinishedRun)


def as_folder(loss: str) -> str:
    """Return a loss without brackets and blanks, as the name of a folder."""
    return re.sub(r"[^\w.=+]+", "-", loss).strip("-")


def baselines_named(given: Sequence[str], losses: Mapping[str, str]) -> list[str]:
    """Return the configurations that ``--baseline`` names.

    Args:
        given: names as the tables show them, folders or losses.
        losses: the loss of each configuration.

    Raises:
        ParameterError: nothing has that name.
    """
    names = []
    for wanted in given:
        folder = as_folder(wanted)
        fitting = [name for name, loss in losses.items() if folder in map(as_folder, (name, loss))]
        check_names("baseline", [] if fitting else [wanted], losses)
        names += fitting
    return names


def read_finished(
    folders: Iterable[Path], programs: Sequence[str] = run_folder.PROGRAMS
) -> tuple[list[FinishedRun], list[str]]:
    """Return finished runs and the names of unfinished ones.

    Args:
        folders: runs, or folders of runs.
        programs: that may have written them.

    Raises:
        UserError: there is no finished run, or another program has written one.
    """
    runs = []
    unfinished = []
    for folder in run_folder.run_folders(folders):
        record = run_folder.read_run(folder)
        if record.program not in programs:
            file = folder / run_folder.RECORD
            raise UserError(f"{file} is not the record of a run of {' or '.join(programs)}")
        if record.state == FINISHED:
            runs.append(FinishedRun(folder.absolute(), record))
        else:
            unfinished.append(folder.name)
    if unfinished and not runs:
        raise UserError(f"no finished run: {', '.join(unfinished)}")
    return runs, unfinished


def by_configuration(runs: Iterable[R]) -> dict[str, list[R]]:
    """Return the runs of each configuration.

    Raises:
        UserError: two runs of a configuration have the same seed or different settings.
    """
    configurations: dict[str, list[R]] = {}
    for run in runs:
        others = configurations.setdefault(run.configuration, [])
        for other in others:
            both = f"{other.folder} and {run.folder}"
            if other.seed == run.seed:
                raise UserError(f"{both} are one configuration with one seed")
            changed = differing([other, run])
            if changed:
                raise UserError(f"{both} have one name and differ in {', '.join(changed)}")
        others.append(run)
    return configurations


def differing(runs: Sequence[FinishedRun], but: Collection[str] = ()) -> list[str]:
    """Return the settings in which runs differ, except seed, folders and those in ``but``."""
    return [name for name in differing_keys([run.settings for run in runs]) if name not in but]


def differing_keys(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ; a missing value counts as None."""
    keys = dict.fromkeys(key for each in options for key in each)
    return [key for key in keys if any(each.get(key) != options[0].get(key) for each in options)]


def labels(runs: Sequence[FinishedRun]) -> list[str]:
    """Return a unique name for each run."""
    configurations = [run.configuration for run in runs]
    names = []
    for run in runs:
        name = run.configuration
        names.append(name if configurations.count(name) == 1 else f"{name}, seed {run.seed}")
    folders = [run.folder.name for run in runs]
    return [
        folder if names.count(name) > 1 else name
        for folder, name in zip(folders, names, strict=True)
    ]
