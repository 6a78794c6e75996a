"""Train and evaluate many configurations with several seeds, each run in its own process and
folder.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystress_text.errors import Interrupted, ParameterError, UserError
from dystress_text.evaluation.catalogue import choose
from dystress_text.evaluation.results import OWN_SETTINGS, results_in
from dystress_text.files.lock import LOCK, locked
from dystress_text.report.runs import FinishedRun, differing
from dystress_text.report.tables import Comparisons, verdict
from dystress_text.report.text_runs import read_text_runs
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.presets import TABLES
from dystress_text.training.run_record import RunRecord
from dystress_text.training.run_state import finished_record, locked_folder

SET_HERE = {
    "--output_dir",
    "--seed",
    "--data_dir",
    "--resume_from_checkpoint",
    "--overwrite_output_dir",
    "--push_to_hub",
}


@dataclass(frozen=True)
class PlannedRun:
    """A run of the sweep, done or not."""

    folder: Path  # where it goes, named by the configuration and the seed
    options: tuple[str, ...]  # of the training program, without the folder and resuming
    tasks: tuple[str, ...]  # of the evaluation; empty for none
    suite: str  # of the evaluation
    data_dir: str | None  # where prepared data lie

    def commands(self) -> Iterator[list[str]]:
        """Yield what is left to do, each step when those before it are done."""
        if not self.is_trained():
            folder = (f"--output_dir={self.folder}", "--resume_from_checkpoint=auto")
            yield [*_program("train"), *self.options, *folder]
        # what a user measured with other options is no figure of the run
        wanted = {**OWN_SETTINGS, "mode": "test"}
        results = [each for each in results_in(self.folder) if each.has(wanted)]
        evaluated = {each.task for each in results if each.group.startswith(f"{self.suite}/")}
        tasks = [task for task in self.tasks if task not in evaluated]
        if tasks:
            data = [] if self.data_dir is None else ["--data_dir", self.data_dir]
            evaluation = ("--model", str(self.folder), "--suite", self.suite)
            yield [*_program("senteval"), *evaluation, *data, "--tasks", *tasks]

    def is_trained(self) -> bool:
        """Whether the folder holds this run, finished; one with other settings is refused."""
        return finished_record(self.folder, parse(self.options).asked()) is not None


def _program(name: str) -> list[str]:
    return [sys.executable, "-m", "dystress_text", name]


def configurations(options: Any) -> dict[str, list[str]]:
    """Return options of the training program by the name of the configuration: presets, or losses
    on top of one of them.
    """
    names = [name for table in options.table for name in TABLES[table]] + options.presets
    presets = {name: [f"--preset={name}"] for name in names}
    if not options.loss:
        if not presets:
            raise UserError("nothing to run: name a --table, --presets, or a --loss")
        return presets
    if len(presets) > 1:
        named = f"{len(presets)} are named: {', '.join(presets)}"
        raise UserError(f"losses go on top of one preset, and {named}")
    preset = [f"--preset={name}" for name in presets]
    found = {}
    for given in options.loss:
        loss = parse([*preset, f"--loss={given}"]).text.loss  # in one spelling
        # a folder's name holds no brackets and blanks
        found[re.sub(r"[^\w.=+]+", "-", loss).strip("-")] = [*preset, f"--loss={loss}"]
    return found


def plan(options: Any, extra: Sequence[str]) -> list[PlannedRun]:
    """Return the runs, seed by seed; check every command line before the first one starts."""
    own = {*SET_HERE, "--preset"} if options.table or options.presets else SET_HERE
    for argument in extra:
        if argument.split("=")[0] in own:
            raise UserError(f"{argument}: not behind --, each run has its own")
    if options.jobs < 1:
        raise ParameterError("jobs", f"must be at least 1, got {options.jobs}")
    chosen = choose(options.suite, [task for task in options.tasks if task != "none"])
    tasks = tuple(task.name for group in chosen.values() for task in group)
    data = [] if options.data_dir is None else [f"--data_dir={options.data_dir}"]
    runs = []
    compared = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each run warns by itself that its logit falls
        named = configurations(options)
        for seed in dict.fromkeys(options.seeds):
            for name, own_options in named.items():
                run_options = (*extra, *own_options, *data, f"--seed={seed}")
                folder = options.output_dir / f"{name}-seed-{seed}"
                record = RunRecord(settings=parse(run_options).options())
                compared[name] = FinishedRun(folder, record)
                runs.append(PlannedRun(folder, run_options, tasks, options.suite, options.data_dir))
    away = differing([*compared.values()], {"loss"})
    if away and not options.different_settings:
        raise UserError(
            f"{', '.join(named)} differ in more than the loss ({', '.join(away)}), so that no "
            "difference between them is a temperature's; "
            "--different_settings runs them all the same"
        )
    return runs


def sweep(options: Any, extra: Sequence[str]) -> bool:
    """Run what is missing; return whether every run is trained and evaluated at the end."""
    runs = plan(options, extra)
    output: Path = options.output_dir
    if options.dry_run:
        for run in runs:
            print(f"{run.folder.name}: {shlex.join(next(run.commands(), ['done']))}")
        return True
    with locked_folder(output):
        logs = output / "logs"
        logs.mkdir(exist_ok=True)
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        print(f"{count}, {options.jobs} at once, in {output}", flush=True)
        failures = run_all(runs, logs, options.jobs)
        for name, reason in failures.items():
            print(f"failed: {name}: {reason}", file=sys.stderr)
        done = [run.folder for run in runs if run.folder.name not in failures]
        tables = ""
        if done:
            for line in verdict(Comparisons(*read_text_runs(done))):
                print(line)
            tables = f"; dystress report {shlex.quote(str(output))} makes the tables"
        print(f"{len(done)} done, {len(failures)} failed{tables}")
    return not failures


@dataclass(frozen=True)
class _Runner:
    """Trains and evaluates a run in processes of its own.

    Attributes:
        logs: folder of the processes' output.
        environment: of the processes.
        signals: those that have asked the sweep to stop.
    """

    logs: Path
    environment: Mapping[str, str]
    signals: list[int]

    def __call__(self, run: PlannedRun) -> str:
        """Return why the run failed; empty where it did not."""
        name = run.folder.name
        with (self.logs / f"{name}.log").open("a", encoding="utf-8") as log:
            try:
                for command in run.commands():
                    if self.signals:
                        break
                    self._wait_until_free(run.folder)
                    print(f"{name}: {command[3]}", flush=True)
                    print(f"$ {shlex.join(command)}", file=log, flush=True)
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=self.environment,
                    )
                    if self._wait(process) and not self.signals:
                        return f"exit code {process.returncode}; log: {log.name}"
            except UserError as error:
                return str(error)
        return ""

    def _wait_until_free(self, folder: Path) -> None:
        """Wait for a run that a killed sweep has started: it goes on without it."""
        told = False
        while not self.signals:
            try:
                with locked(folder / LOCK):
                    return
            except UserError as error:
                if not told:
                    print(f"{folder.name}: waiting, {error}", flush=True)
                told = True
                time.sleep(1)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while not self.signals:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=1)
        print("stopping a run, which saves what it has", flush=True)
        process.terminate()
        return process.wait()


def run_all(runs: Sequence[PlannedRun], logs: Path, at_once: int) -> dict[str, str]:
    """Train and evaluate runs, so many at once, and return why some failed, by name.

    SIGTERM and Ctrl-C reach the processes, which save what they have and are waited for.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    environment = {"OMP_NUM_THREADS": str(max(1, cores // at_once)), **os.environ}
    signals: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: signals.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with ThreadPoolExecutor(at_once) as threads:
            reasons = list(threads.map(_Runner(logs, environment, signals), runs))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals:
        raise Interrupted(
            signals[0],
            f"stopped by {signal.Signals(signals[0]).name}; the same line goes on from there",
        )
    return {run.folder.name: reason for run, reason in zip(runs, reasons, strict=True) if reason}
