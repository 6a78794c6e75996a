"""Train and evaluate many configurations with several seeds, each run in its own process and
folder.
"""

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
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import set_seed

from dystress_text.cli.command_line import one_line
from dystress_text.errors import Interrupted, ParameterError, UserError
from dystress_text.evaluation.catalogue import SUITES, choose, suite_folder
from dystress_text.evaluation.embedder import load_model
from dystress_text.evaluation.evaluators import build_evaluation
from dystress_text.evaluation.readers import check_distinct, read_scored_pairs
from dystress_text.evaluation.results import OWN_SETTINGS, RESULTS, results_in
from dystress_text.evaluation.retrieval import read_collections
from dystress_text.evaluation.words import WORDS
from dystress_text.files.lock import LOCK, locked
from dystress_text.models.loading import quiet
from dystress_text.report.page import leave_report
from dystress_text.report.runs import FinishedRun, as_folder, baselines_named, differing
from dystress_text.report.tables import Comparisons, render
from dystress_text.report.text_page import text_page
from dystress_text.report.text_runs import read_text_runs
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.initial_model import load_initial_model
from dystress_text.simcse.presets import TABLES
from dystress_text.simcse.settings import RunSettings, TextSettings
from dystress_text.simcse.texts import training_text
from dystress_text.simcse.training_data import fit_settings, prepare_data
from dystress_text.training.run_folder import RECORD
from dystress_text.training.run_record import RunRecord
from dystress_text.training.run_state import finished_record, locked_folder
from dystress_text.training.surroundings import left_as_they_were

_NOT_STARTED = "not started"
SET_HERE = {
    "--output_dir",
    "--seed",
    "--data_dir",
    "--resume_from_checkpoint",
    "--overwrite_output_dir",
    "--push_to_hub",
}


@dataclass(frozen=True)
class TestSets:
    """What each model of the sweep is measured on.

    Attributes:
        suite: of the tasks.
        tasks: by name, in table order.
        pairs: files or data sets, by the name and the checksum of the pairs.
        retrieval: folders or files, by the name and the checksum of the collection.
        data_dir: where prepared data lie.
    """

    suite: str
    tasks: tuple[str, ...]
    pairs: Mapping[tuple[str, str], str]
    retrieval: Mapping[tuple[str, str], str]
    data_dir: str | None

    @classmethod
    def read(cls, options: Any) -> TestSets:
        """Read what the options name, and look whether the files of the tasks are there."""
        tasks = options.tasks
        if tasks is None:
            tasks = [] if options.pairs or options.retrieval else ["sts"]
        groups = choose(options.suite, [task for task in tasks if task != "none"])
        chosen = [task for group in groups.values() for task in group]
        folder = suite_folder(options.suite, options.data_dir)
        for file in (folder / name for task in chosen for name in task.files):
            if not file.is_file():
                reason = (
                    f"no {file}; dystress prepare senteval gets it, --suite mini needs none, "
                    "--pairs and --retrieval measure on your own data"
                )
                raise ParameterError("data_dir", reason)
        pairs = [read_scored_pairs(source, "pairs") for source in options.pairs]
        check_distinct("pairs", [each.name for each in pairs])
        collections = read_collections("retrieval", options.retrieval)
        return cls(
            options.suite,
            tuple(task.name for task in chosen),
            {
                (each.name, each.checksum): source
                for each, source in zip(pairs, options.pairs, strict=True)
            },
            {
                (each.name, str(each.about["sha256"])): str(path)
                for each, path in zip(collections, options.retrieval, strict=True)
            },
            options.data_dir,
        )

    def without_transfer(self) -> TestSets:
        """Return those that the lexical baseline can be measured on."""
        sts = {task.name for task in SUITES[self.suite]["sts"]}
        return replace(self, tasks=tuple(task for task in self.tasks if task in sts))

    def evaluation(self, folder: Path, *of: str, weights: str | None = None) -> Iterator[list[str]]:
        """Yield the command that measures what the results in a folder lack, if they lack any."""
        # what a user measured with other options is no figure of the run
        wanted = {**OWN_SETTINGS, "mode": "test"}
        results = [each for each in results_in(folder) if each.has(wanted)]
        results = [each for each in results if weights in (None, each.weights)]
        evaluated = {each.task for each in results if each.group.startswith(f"{self.suite}/")}
        measured = {(each.group, each.task, each.data) for each in results}
        missing = {"tasks": [task for task in self.tasks if task not in evaluated]}
        for group, sources in (("pairs", self.pairs), ("retrieval", self.retrieval)):
            missing[group] = [sources[key] for key in sources if (group, *key) not in measured]
        named = [[f"--{option}", *values] for option, values in missing.items() if values]
        data = [] if self.data_dir is None else ["--data_dir", self.data_dir]
        if named:
            yield [*_program("senteval"), *of, "--suite", self.suite, *data, *chain(*named)]


@dataclass(frozen=True)
class Measured:
    """A model that is measured as the runs are: the untrained one, or the lexical baseline."""

    folder: Path  # of the results
    model: str  # what --model calls it
    sets: TestSets
    weights: str | None = None  # their checksum; None for any

    def commands(self) -> Iterator[list[str]]:
        """Yield what is left to do, each step when those before it are done."""
        output = str(self.folder / RESULTS)
        of = ("--model", self.model, "--output", output)
        yield from self.sets.evaluation(self.folder, *of, weights=self.weights)


@dataclass(frozen=True)
class PlannedRun:
    """A run of the sweep, done or not."""

    folder: Path  # where it goes, named by the configuration and the seed
    options: tuple[str, ...]  # of the training program, without the folder and resuming
    sets: TestSets

    def commands(self) -> Iterator[list[str]]:
        """Yield what is left to do, each step when those before it are done."""
        if not self.is_trained():
            folder = (f"--output_dir={self.folder}", "--resume_from_checkpoint=auto")
            yield [*_program("train"), *self.options, *folder]
        yield from self.sets.evaluation(self.folder, "--model", str(self.folder))

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
        found[as_folder(loss)] = [*preset, f"--loss={loss}"]
    return found


def plan(options: Any, extra: Sequence[str]) -> list[PlannedRun]:
    """Return the runs, seed by seed; check every command line before the first one starts."""
    own = {*SET_HERE, "--preset"} if options.table or options.presets else SET_HERE
    for argument in extra:
        if argument.split("=")[0] in own:
            raise UserError(f"{argument}: not behind --, each run has its own")
    if options.jobs < 1:
        raise ParameterError("jobs", f"must be at least 1, got {options.jobs}")
    sets = TestSets.read(options)
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
                settings = parse(run_options)
                record = RunRecord(settings=settings.options(), loss=str(settings.loss))
                compared[name] = FinishedRun(folder, record)
                runs.append(PlannedRun(folder, run_options, sets))
    baselines_named(
        options.baseline, {run.configuration: run.record.loss for run in compared.values()}
    )
    away = differing([*compared.values()], {"loss"})
    if away and not options.different_settings:
        raise UserError(
            f"{', '.join(named)} differ in more than the loss ({', '.join(away)}), so that no "
            "difference between them is a temperature's; "
            "--different_settings runs them all the same"
        )
    return runs


def untrained_models(runs: Sequence[PlannedRun]) -> Iterator[Measured]:
    """Save the model that runs start from, once for those with the same; yield what it lacks.

    What a run would refuse before its first step is refused here.
    """
    known: list[TextSettings] = []
    for run in runs:
        settings = parse(run.options)
        if settings.text in known:
            continue
        name = f"untrained-{len(known) + 1}" if known else "untrained"
        known.append(settings.text)
        folder = run.folder.with_name(name)
        save_untrained(settings, folder)
        weights = load_model(str(folder), None)[1]["weights"]
        yield Measured(folder, str(folder), run.sets, weights)


def save_untrained(settings: RunSettings, folder: Path) -> None:
    """Save the model that a run starts from, and check what the run would check."""
    with left_as_they_were(), quiet():
        text = training_text(settings.text)
        build_evaluation(settings.evaluation, settings.text.data_dir)
        set_seed(settings.engine.seed)
        initial = load_initial_model(settings.text, settings.given, text)
        data = prepare_data(text, initial, settings, Accelerator(cpu=True))
        fit_settings(settings, data, initial, processes=1)
        if initial.untrained is initial.model:
            initial.save(folder)
        else:
            initial.untrained.save(str(folder), create_model_card=False)


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
        references = [Measured(output / "lexical", WORDS, runs[0].sets.without_transfer())]
        if any(True for run in runs for _ in run.commands()):
            references += untrained_models(runs)
        alike = not options.different_settings
        failures = run_all([*references, *runs], logs, options.jobs, alike)
        done = [run.folder for run in runs if run.folder.name not in failures]
        if done:
            others = [output / "lexical", *sorted(output.glob("untrained*"))]
            others = [folder for folder in others if results_in(folder)]
            compared = Comparisons(*read_text_runs([*others, *done]), options.baseline)
            print(f"\n{render(compared, 'text')}\n")
            print(leave_report(output, lambda: text_page(compared), "the runs"))
        not_started = list(failures.values()).count(_NOT_STARTED)
        failed = len(runs) - len(done) - not_started
        rest = f", {not_started} not started, as all would fail" if not_started else ""
        print(f"{len(done)} done, {failed} failed{rest}")
    return not failures


@dataclass(frozen=True)
class _Runner:
    """Trains and evaluates a run in processes of its own.

    Attributes:
        logs: folder of the processes' output.
        environment: of the processes.
        signals: those that have asked the sweep to stop.
        alike: whether the runs differ in the loss alone, so that all fail where the first one does.
        failed: the names of those that failed before any run had begun.
    """

    logs: Path
    environment: Mapping[str, str]
    signals: list[int]
    alike: bool
    failed: list[str] = field(default_factory=list)

    def __call__(self, run: Measured | PlannedRun) -> str:
        """Return why the run failed; empty where it did not."""
        name = run.folder.name
        if self.failed:
            return _NOT_STARTED
        reason = ""
        with (self.logs / f"{name}.log").open("a+", encoding="utf-8") as log:
            try:
                for command in run.commands():
                    if self.signals:
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
            if self.alike and not any(self.logs.parent.glob(f"*/{RECORD}")):
                self.failed.append(name)
        return reason

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


def _error_in(log: str) -> str:
    """Return the last error of a log, or its last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error: " in line.lower()]
    return (errors or lines or [""])[-1]


def run_all(
    runs: Sequence[Measured | PlannedRun], logs: Path, at_once: int, alike: bool
) -> dict[str, str]:
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
            reasons = list(threads.map(_Runner(logs, environment, signals, alike), runs))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals:
        raise Interrupted(
            signals[0],
            f"stopped by {signal.Signals(signals[0]).name}; the same line goes on from there",
        )
    return {run.folder.name: reason for run, reason in zip(runs, reasons, strict=True) if reason}
