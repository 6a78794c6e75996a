"""Train and evaluate configurations with several seeds, each run in its own process."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import set_seed

from dystress_text.analysis.page import leave_report
from dystress_text.analysis.runs import FinishedRun, as_folder, baselines_named, differing
from dystress_text.analysis.tables import Comparisons, render
from dystress_text.analysis.text_page import text_page
from dystress_text.analysis.text_runs import read_text_runs
from dystress_text.cli.command_line import one_line
from dystress_text.config.arguments import parse
from dystress_text.config.presets import TABLES
from dystress_text.config.settings import RunSettings
from dystress_text.data.texts import training_text
from dystress_text.errors import Interrupted, ParameterError, UserError
from dystress_text.evaluation.catalogue import choose, suite_folder
from dystress_text.evaluation.embedder import load_model
from dystress_text.evaluation.evaluators import build_evaluators
from dystress_text.evaluation.readers import check_distinct, read_scored_pairs
from dystress_text.evaluation.results import OWN_SETTINGS, RESULTS, results_in
from dystress_text.evaluation.retrieval import read_collections
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.finetuning.training_data import fit_settings, prepare_data
from dystress_text.io.lock import LOCK, locked
from dystress_text.models.loading import quiet
from dystress_text.training.global_state import restored_global_state
from dystress_text.training.run_folder import RECORD
from dystress_text.training.run_record import RunRecord
from dystress_text.training.run_state import finished_record, locked_folder

UNTRAINED = "untrained"  # the folder of the initial model and its results
SET_HERE = {
    "--output_dir",
    "--seed",
    "--data_dir",
    "--resume_from_checkpoint",
    "--overwrite_output_dir",
    "--push_to_hub",
}


# what each model is measured on: the argument of the evaluation by option, name and checksum
Sets = Mapping[tuple[str, str, str | None], str]


@dataclass(frozen=True)
class PlannedRun:
    """A run of the sweep, done or not, or the untrained model, which is only evaluated.

    Attributes:
        folder: of the model and its results; its name has the configuration and the seed.
        sets: what the model is measured on.
        suite: options of all evaluations.
        options: of the training program, without the folder; None for the untrained model.
        weights: the checksum that results must have; None for any.
    """

    folder: Path
    sets: Sets
    suite: tuple[str, ...]
    options: tuple[str, ...] | None = None
    weights: str | None = None

    def commands(self) -> Iterator[list[str]]:
        """Yield the commands that remain; each follows from the results of those before it."""
        output = ["--output", str(self.folder / RESULTS)]
        if self.options is not None:
            output = []  # the evaluation writes into the folder of a run and updates its card
            if not self.is_trained():
                folder = (f"--output_dir={self.folder}", "--resume_from_checkpoint=auto")
                yield [*_program("train"), *self.options, *folder]
        missing = self._missing()
        if missing:
            yield [
                *_program("senteval"),
                "--model",
                str(self.folder),
                *output,
                *self.suite,
                *missing,
            ]

    def is_trained(self) -> bool:
        """Return whether the folder holds this run, finished.

        Raises:
            UserError: it holds a run with other settings.
        """
        assert self.options is not None
        return finished_record(self.folder, parse(self.options).asked()) is not None

    def _missing(self) -> list[str]:
        """Return the options that name what has not been measured."""
        # a user may have evaluated the model with other options
        own = {**OWN_SETTINGS, "mode": "test"}
        measured = {
            ("tasks", each.task, None) if "/" in each.group else (each.group, each.task, each.data)
            for each in results_in(self.folder)
            if each.has(own) and self.weights in (None, each.weights)
        }
        missing: dict[str, list[str]] = {}
        for key, source in self.sets.items():
            if key not in measured:
                missing.setdefault(f"--{key[0]}", []).append(source)
        return [word for option, sources in missing.items() for word in (option, *sources)]


def sets_of(options: Any) -> Sets:
    """Read the sets that models will be measured on.

    Raises:
        ParameterError: a file of a task is missing, or data are damaged.
    """
    tasks = options.tasks
    if tasks is None:
        tasks = [] if options.pairs or options.retrieval else ["sts"]
    groups = choose(options.suite, [task for task in tasks if task != "none"])
    chosen = [task for group in groups.values() for task in group]
    folder = suite_folder(options.suite, options.data_dir)
    for file in (folder / name for task in chosen for name in task.files):
        if not file.is_file() and not options.dry_run:
            reason = f"no {file}: run dystress prepare senteval; --suite mini and --pairs "
            raise ParameterError("data_dir", f"{reason}need no data")
    pairs = [read_scored_pairs(source, "pairs") for source in options.pairs]
    check_distinct("pairs", [each.name for each in pairs])
    sets: dict[tuple[str, str, str | None], str] = {}
    for task in chosen:
        sets["tasks", task.name, None] = task.name
    for source, each in zip(options.pairs, pairs, strict=True):
        sets["pairs", each.name, each.checksum] = source
    collections = read_collections("retrieval", options.retrieval)
    for path, collection in zip(options.retrieval, collections, strict=True):
        sets["retrieval", collection.name, str(collection.metadata["sha256"])] = str(path)
    return sets


def _program(name: str) -> list[str]:
    return [sys.executable, "-m", "dystress_text", name]


def configurations(options: Any) -> dict[str, list[str]]:
    """Return the options of each configuration by its name: presets, or losses in one preset."""
    names = [name for table in options.table for name in TABLES[table]] + options.presets
    presets = {name: [f"--preset={name}"] for name in names}
    if not options.loss:
        if not presets:
            raise UserError("nothing to run: name a --table, --presets, or a --loss")
        return presets
    if len(presets) > 1:
        named = f"--presets has {', '.join(presets)}"
        raise UserError(f"--loss changes the loss of one preset, but {named}")
    preset = [f"--preset={name}" for name in presets]
    found = {}
    for given in options.loss:
        loss = parse([*preset, f"--loss={given}"]).text.loss  # normalised
        found[as_folder(loss)] = [*preset, f"--loss={loss}"]
    return found


def plan(options: Any, extra: Sequence[str]) -> list[PlannedRun]:
    """Return the runs, seed by seed.

    Args:
        options: of the sweep.
        extra: options of the training program.

    Raises:
        UserError: a command line is wrong, or configurations differ in more than the loss.
    """
    own = {*SET_HERE, "--preset"} if options.table or options.presets else SET_HERE
    for argument in extra:
        if argument.split("=")[0] in own:
            raise UserError(f"{argument}: not allowed after --, the sweep sets it")
    if options.jobs < 1:
        raise ParameterError("jobs", f"must be at least 1, got {options.jobs}")
    data = [] if options.data_dir is None else [f"--data_dir={options.data_dir}"]
    planned = []
    compared = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each run gives its own warnings
        named = configurations(options)
        for seed in dict.fromkeys(options.seeds):
            for name, own_options in named.items():
                run_options = (*extra, *own_options, *data, f"--seed={seed}")
                folder = options.output_dir / f"{name}-seed-{seed}"
                settings = parse(run_options)
                record = RunRecord(settings=settings.options(), loss=str(settings.loss))
                compared[name] = FinishedRun(folder, record)
                planned.append((folder, run_options))
    losses = {run.configuration: run.record.loss for run in compared.values()}
    baselines_named(options.baseline, losses)
    away = differing([*compared.values()], {"loss"})
    if away and not options.different_settings:
        raise UserError(
            f"{', '.join(named)} differ in more than the loss ({', '.join(away)}); "
            "--different_settings allows it"
        )
    sets = sets_of(options)
    suite: tuple[str, ...] = ("--suite", options.suite)
    if options.data_dir is not None:
        suite += ("--data_dir", options.data_dir)
    return [PlannedRun(folder, sets, suite, options=run_options) for folder, run_options in planned]


def initial_models(options: Any, runs: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
    """Save and yield the untrained models that the runs start from.

    Raises:
        UserError: a run would be rejected before its first step.
    """
    if not any(True for run in runs for _ in run.commands()):
        return
    count = len(configurations(options)) if options.different_settings else 1
    for run in runs[:count]:
        name = UNTRAINED if count == 1 else f"{UNTRAINED}-{run.folder.name}"
        folder = options.output_dir / name
        save_untrained(parse(run.options or ()), folder)
        weights = load_model(str(folder), None)[1]["weights"]
        yield PlannedRun(folder, run.sets, run.suite, weights=weights)


def save_untrained(settings: RunSettings, folder: Path) -> None:
    """Save the model that a run starts from, and check all that the run would check."""
    with restored_global_state(), quiet():
        text = training_text(settings.text)
        build_evaluators(settings.evaluation, settings.text.data_dir)
        set_seed(settings.training.seed)
        initial = load_initial_model(settings.text, settings.given, text)
        data = prepare_data(text, initial, settings, Accelerator(cpu=True))
        fit_settings(settings, data, initial, processes=1)
        if initial.untrained is initial.model:
            initial.save(folder)
        else:
            initial.untrained.save(str(folder), create_model_card=False)


def sweep(options: Any, extra: Sequence[str]) -> bool:
    """Run what is missing; return whether every run is trained and evaluated."""
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
        failures = run_all([*initial_models(options, runs), *runs], logs, options.jobs)
        done = [run.folder for run in runs if run.folder.name not in failures]
        if done:
            others = [
                folder for folder in sorted(output.glob(f"{UNTRAINED}*")) if results_in(folder)
            ]
            compared = Comparisons(*read_text_runs([*others, *done]), options.baseline)
            print(f"\n{render(compared, 'text')}\n")
            print(leave_report(output, lambda: text_page(compared), "the runs"))
        print(f"{len(done)} done, {len(failures)} failed")
    return not failures


@dataclass(frozen=True)
class _Runner:
    """Train and evaluate a run in processes of its own.

    Attributes:
        logs: folder of the processes' output.
        environment: of the processes.
        signals: those that the sweep has received.
        stopped: the run that failed before any other had begun; nothing more is started then.
    """

    logs: Path
    environment: Mapping[str, str]
    signals: list[int]
    stopped: list[str] = field(default_factory=list)

    def __call__(self, run: PlannedRun) -> str:
        """Return why the run failed; "" if it did not."""
        name = run.folder.name
        reason = ""
        with (self.logs / f"{name}.log").open("a+", encoding="utf-8") as log:
            try:
                for command in run.commands():
                    if self.signals or self.stopped:
                        break
                    self._wait_until_free(run.folder)
                    print(f"{name}: {command[3]}", flush=True)
                    print(f"$ {shlex.join(command)}", file=log, flush=True)
                    begun = log.tell()
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=self.environment,
                    )
                    if self._wait(process) and not self.signals:
                        log.seek(begun)
                        reason = _error_in(log.read()) or f"exit code {process.returncode}"
                        reason += f"; log: {log.name}"
                        break
            except UserError as error:
                reason = str(error)
        if reason:
            print(f"failed: {name}: {one_line(reason)}", file=sys.stderr, flush=True)
            if not any(self.logs.parent.glob(f"*/{RECORD}")):
                self.stopped.append(name)
        return reason

    def _wait_until_free(self, folder: Path) -> None:
        """Wait for a run that a killed sweep has left behind."""
        reported = False
        while not self.signals:
            try:
                with locked(folder / LOCK):
                    return
            except UserError as error:
                if not reported:
                    print(f"{folder.name}: waiting, {error}", flush=True)
                reported = True
                time.sleep(1)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while not self.signals:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=1)
        print("stopping a run, which saves its state", flush=True)
        process.terminate()
        return process.wait()


def _error_in(log: str) -> str:
    """Return the last error of a log, or its last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error: " in line.lower()]
    return (errors or lines or [""])[-1]


def run_all(runs: Sequence[PlannedRun], logs: Path, at_once: int) -> dict[str, str]:
    """Train and evaluate runs; return why some failed, by name.

    SIGTERM and Ctrl-C stop the processes, which save their state first.

    Args:
        runs: in order.
        logs: folder of the processes' output.
        at_once: the number of processes.

    Raises:
        Interrupted: by a signal.
        UserError: a run failed before any other had begun.
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
            runner = _Runner(logs, environment, signals)
            reasons = list(threads.map(runner, runs))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals:
        raise Interrupted(
            signals[0],
            f"stopped by {signal.Signals(signals[0]).name}; the same command continues",
        )
    if runner.stopped:
        raise UserError(
            f"{runner.stopped[0]} failed before any run had begun; no other one was started"
        )
    return {run.folder.name: reason for run, reason in zip(runs, reasons, strict=True) if reason}
