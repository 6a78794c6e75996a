"""Train and evaluate many configurations with several seeds, each run in its own process and folder."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dystress_text.errors import Interrupted, UserError
from dystress_text.evaluation.catalogue import own_names
from dystress_text.files.places import PACKAGE
from dystress_text.report.jobs import Command, Job, run_jobs
from dystress_text.report.runs import FREE, PAIRS
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.objective import objective_of
from dystress_text.simcse.presets import PRESETS, TABLES
from dystress_text.training.presets import find_preset
from dystress_text.training.run_folder import RECORD, evaluation_file, read_json, read_record
from dystress_text.training.settings import TEMPERATURE_OPTIONS

GRID = tuple(option for option in TEMPERATURE_OPTIONS if option != "unit")  # the numbers
SET_HERE = ("--output_dir", "--seed", "--data_dir", "--resume_from_checkpoint", "--overwrite_output_dir")
TRAIN, EVALUATE = PACKAGE / "train.py", PACKAGE / "senteval.py"


@dataclass(frozen=True)
class Evaluation:
    """What each run is evaluated on.

    Attributes:
        tasks: names as ``eval/senteval.py`` knows them; empty for no evaluation.
        suite: its ``--suite``.
        data_dir: where prepared data lie.
    """

    tasks: tuple[str, ...]
    suite: str
    data_dir: str | None


@dataclass(frozen=True)
class PlannedRun:
    """A training run of the sweep, done or not.

    Attributes:
        name: of the configuration and the seed; also the folder's.
        folder: where it goes.
        options: of the training program, without the folder and resuming.
    """

    name: str
    folder: Path
    options: tuple[str, ...]

    def state(self) -> str:
        """``missing``, ``begun`` or ``trained``.

        Raises:
            UserError: the folder holds a finished run with other settings.
        """
        if not self.folder.is_dir() or not any(self.folder.iterdir()):
            return "missing"
        record = read_record(self.folder)
        if "trained" not in record:
            return "begun"
        now = json.loads(json.dumps(parse(self.options).options()))
        then = record.get("settings", {})
        changed = [name for name in now if name not in FREE and then.get(name) != now[name]]
        if changed:
            differences = "; ".join(f"{name} was {then.get(name)}, is {now[name]}" for name in changed)
            raise UserError(
                f"{self.folder} holds a finished run with other settings ({differences}): another --output_dir"
            )
        return "trained"

    def train_command(self) -> Command | None:
        """What trains it, or goes on with it; None where it is trained."""
        state = self.state()
        resume = ["--resume_from_checkpoint"] if state == "begun" else []
        command = [sys.executable, str(TRAIN), *self.options, f"--output_dir={self.folder}", *resume]
        return None if state == "trained" else command

    def evaluate_command(self, evaluation: Evaluation) -> Command | None:
        """What evaluates it; None where that is done, or not asked for."""
        asked = self._evaluated(evaluation.suite)
        if set(evaluation.tasks) <= asked or "all" in asked:
            return None
        tasks = sorted(asked | set(evaluation.tasks))
        data = [] if evaluation.data_dir is None else ["--data_dir", evaluation.data_dir]
        return [
            sys.executable, str(EVALUATE), "--model", str(self.folder), "--suite", evaluation.suite, *data,
            "--pairs", str(self.folder / PAIRS), "--tasks", *tasks,
        ]  # fmt: skip

    def _evaluated(self, suite: str) -> set[str]:
        """The tasks asked for in a complete evaluation of the run as it is."""
        file = evaluation_file(self.folder, suite, "test")
        try:
            if file.stat().st_mtime < (self.folder / RECORD).stat().st_mtime:  # of an older run
                return set()
            result = read_json(file)
            return set(result["asked"]) if result["complete"] else set()
        except (OSError, UserError, KeyError, TypeError):
            return set()


def configurations(options: Any) -> dict[str, list[str]]:
    """Options of the training program by the name of the configuration.

    Raises:
        UserError: an unknown preset, or none at all.
    """
    names = [*itertools.chain.from_iterable(TABLES[table] for table in options.table), *options.presets]
    for name in names:
        find_preset(name, PRESETS)
    found = {name: [f"--preset={name}"] for name in names}
    axes = {name: list(dict.fromkeys(getattr(options, name))) for name in GRID if getattr(options, name)}
    if axes or options.temperature:
        kind = [] if options.temperature is None else [f"--temperature={options.temperature}"]
        for values in itertools.product(*axes.values()):
            point = dict(zip(axes, values, strict=True))
            if point.get("tau_min", 0) <= point.get("tau_max", float("inf")):
                words = [*([options.temperature] if kind else []), *(f"{name}={v:g}" for name, v in point.items())]
                found["grid-" + "-".join(words)] = [*kind, *(f"--{name}={v}" for name, v in point.items())]
    if not found:
        raise UserError("nothing to run: name a --table, --presets, or a --temperature with its values")
    return found


def plan(options: Any, extra: Sequence[str]) -> list[PlannedRun]:
    """The runs, configuration by configuration; every command line is checked before the first one starts.

    Raises:
        UserError: options that do not fit.
    """
    taken = [word for word in extra if word.split("=")[0] in SET_HERE]
    if taken:
        raise UserError(
            f"{taken[0]}: not behind --, the sweep sets it (--seeds, --output_dir and --data_dir are its own)"
        )
    if (options.table or options.presets) and any(word.split("=")[0] == "--preset" for word in extra):
        raise UserError("--preset: not behind --, each row is a preset")
    if options.jobs < 1:
        raise UserError(f"--jobs: must be at least 1, got {options.jobs}")
    data = [] if options.data_dir is None else [f"--data_dir={options.data_dir}"]
    runs = []
    for seed in dict.fromkeys(options.seeds):
        for name, words in configurations(options).items():
            run_options = (*extra, *words, *data, f"--seed={seed}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # each run warns by itself that its logit falls
                settings = parse(run_options)
                objective_of(settings)
            runs.append(PlannedRun(f"{name}-seed-{seed}", options.output_dir / f"{name}-seed-{seed}", run_options))
    return runs


def evaluation_of(options: Any) -> Evaluation:
    """What ``--tasks`` asks for.

    Raises:
        UserError: ``none`` together with others, or a task that is left out on purpose.
    """
    if "none" in options.tasks and len(options.tasks) > 1:
        raise UserError("--tasks: none stands alone")
    tasks = own_names(options.tasks)
    return Evaluation(tuple(task for task in tasks if task != "none"), options.suite, options.data_dir)


def sweep(options: Any, extra: Sequence[str]) -> bool:
    """Run what is missing; whether every run is trained and evaluated at the end.

    Raises:
        UserError: options that do not fit, or a folder that cannot be made.
        Interrupted: by a signal, after all processes have ended.
    """
    evaluation = evaluation_of(options)
    runs = plan(options, extra)
    if options.dry_run:
        for run in runs:
            print(_listed(run, evaluation))
        return True
    try:
        options.output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output_dir: cannot write to {str(options.output_dir)!r}: {error.strerror}") from error
    environment = dict(os.environ)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // options.jobs)))
    print(f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {options.jobs} at once, in {options.output_dir}", flush=True)
    jobs = [_job(run, evaluation) for run in runs]
    outcomes, stopped = run_jobs(jobs, options.jobs, partial(print, flush=True), environment)
    for run in runs:
        if outcomes[run.name].state == "failed":
            print(f"failed: {run.name}: {outcomes[run.name].reason}", file=sys.stderr)
    states = [outcome.state for outcome in outcomes.values()]
    counts = ", ".join(f"{states.count(s)} {s}" for s in ("done", "failed", "stopped", "waiting") if s in states)
    if stopped:
        raise Interrupted(
            stopped, f"stopped by {signal.Signals(stopped).name}: {counts}; the same line goes on from there"
        )
    tables = f"; dystress report {shlex.quote(str(options.output_dir))} makes the tables"
    print(counts + (tables if "done" in states else ""))
    return states.count("done") == len(runs)


def _job(run: PlannedRun, evaluation: Evaluation) -> Job:
    log = run.folder.parent / "logs" / f"{run.name}.log"
    return Job(
        run.name, log, (("training", run.train_command), ("evaluation", partial(run.evaluate_command, evaluation)))
    )


def _listed(run: PlannedRun, evaluation: Evaluation) -> str:
    try:
        state, command = run.state(), run.train_command()
    except UserError as error:
        return f"{run.name}: refused: {error}"
    if command is None:
        command = run.evaluate_command(evaluation)
        state = "trained" if command is not None else "done"
    return f"{run.name}: {state}" + ("" if command is None else f"\n    {shlex.join(command)}")
