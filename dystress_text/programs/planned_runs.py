"""The runs of a sweep: which are left, their command lines, and their processes, one at a time.

Apart from ``sweep``, as it imports torch.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import IO, Any

from accelerate.utils import set_seed

from dystress_text.analysis.compared_models import baseline_named, read_compared_models
from dystress_text.analysis.finished_run import as_folder, leave_report
from dystress_text.analysis.tables import render, text_page
from dystress_text.cli.command_line import error_line
from dystress_text.errors import DataError, Interrupted, ParameterError, UserError
from dystress_text.evaluation.catalogue import choose, suite_folder
from dystress_text.evaluation.evaluate_models import evaluator_of
from dystress_text.evaluation.results import OWN_SETTINGS, RESULTS, Result, results_in
from dystress_text.evaluation.retrieval import read_collections
from dystress_text.evaluation.text_encoder import load_model
from dystress_text.evaluation.text_sets import check_distinct, read_scored_pairs
from dystress_text.finetuning.arguments import parse
from dystress_text.finetuning.content import read_content
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.finetuning.presets import PRESETS, TABLES
from dystress_text.finetuning.settings import FineTuningSettings
from dystress_text.finetuning.texts import training_text
from dystress_text.finetuning.training_data import prepare_data
from dystress_text.models.loading import quiet, save_model
from dystress_text.training.global_state import restored_global_state
from dystress_text.training.run_folder import finished_record, locked_folder

UNTRAINED = "untrained"  # the folder of the initial model and its results
SET_HERE = {
    "--output_dir",
    "--preset",
    "--seed",
    "--data_dir",
    "--resume_from_checkpoint",
    "--overwrite_output_dir",
    "--push_to_hub",
}


@dataclass(frozen=True)
class EvaluationSet:
    """A task, a set of pairs or a collection to measure each model on.

    Attributes:
        option: the option that selects the set: ``--tasks``, ``--pairs`` or ``--retrieval``.
        argument: the argument of that option.
        name: the name of the set in results.
        checksum: the checksum of the data; None for a task whose data cannot be read.
    """

    option: str
    argument: str
    name: str
    checksum: str | None = None

    def has(self, result: Result) -> bool:
        """Return whether a result was measured on this set, with the same content."""
        if result.task != self.name or ("/" in result.group) != (self.option == "--tasks"):
            return False
        return self.checksum in (None, result.data)


def _content(options: tuple[str, ...]) -> dict[str, str]:
    return read_content(parse(options))


@dataclass(frozen=True)
class PlannedRun:
    """A run of the sweep, finished or not; or the untrained model, which is only evaluated.

    Attributes:
        folder: the folder of the model and its results, named after configuration and seed.
        sets: the sets to measure the model on.
        suite: options of every evaluation.
        options: options of the training program, without the folder; None for the untrained model.
        weights: the checksum of the weights whose results count; None for any weights.
        content: returns the checksums of all files that a run with given options reads.
    """

    folder: Path
    sets: Sequence[EvaluationSet]
    suite: tuple[str, ...]
    options: tuple[str, ...] | None = None
    weights: str | None = None
    content: Callable[[tuple[str, ...]], Mapping[str, str]] = _content

    def commands(self) -> Iterator[list[str]]:
        """Yield the commands that are left; each is decided on after the previous one has run."""
        output = ["--output", str(self.folder / RESULTS)]
        if self.options is not None:
            output = []  # the evaluation writes into the folder of a run and updates its card
            if not self.is_trained():
                folder = (f"--output_dir={self.folder}", "--resume_from_checkpoint=auto")
                yield [*_program("train"), *self.options, *folder]
        missing = self._missing()
        if missing:
            model = ["--model", str(self.folder)]
            yield [*_program("evaluate"), *model, *output, *self.suite, *missing]

    def is_trained(self) -> bool:
        """Return whether the folder contains this run and it has finished.

        Raises:
            UserError: the folder contains a run with other settings, data or base model.
        """
        assert self.options is not None
        without_seed = tuple(each for each in self.options if not each.startswith("--seed="))
        content = partial(self.content, without_seed)
        return finished_record(self.folder, parse(self.options).asked(), content) is not None

    def _missing(self) -> list[str]:
        """Return the options that evaluate the sets without a result."""
        # a user may have evaluated the model with other options
        own = {**OWN_SETTINGS, "mode": "test"}
        results = [
            each
            for each in results_in(self.folder)
            if each.has(own) and self.weights in (None, each.weights)
        ]
        missing: dict[str, list[str]] = {}
        for each in self.sets:
            if not any(map(each.has, results)):
                missing.setdefault(each.option, []).append(each.argument)
        return [part for option, values in missing.items() for part in (option, *values)]


def sets_of(options: Namespace) -> list[EvaluationSet]:
    """Read the sets to measure models on.

    Raises:
        ParameterError: a file of a task is missing, or data are damaged.
    """
    tasks = options.tasks
    if tasks is None:
        tasks = [] if options.pairs or options.retrieval else ["sts"]
    groups = choose(options.suite, [task for task in tasks if task != "none"])
    folder = suite_folder(options.suite, options.data_dir)
    sets = []
    for task in (task for group in groups.values() for task in group):
        checksum: str | None = None
        with suppress(DataError):  # the evaluation says so
            checksum = evaluator_of(task, folder).details["sha256"]
        sets.append(EvaluationSet("--tasks", task.name, task.name, checksum))
        missing = [folder / name for name in task.files if not (folder / name).is_file()]
        if missing and not options.dry_run:
            reason = f"lacks {missing[0]}: run dystress prepare senteval; --suite mini and --pairs "
            raise ParameterError("data_dir", f"{reason}need no data")
    pairs = [read_scored_pairs(source) for source in options.pairs]
    check_distinct("pairs", [each.name for each in pairs])
    for source, each in zip(options.pairs, pairs, strict=True):
        sets.append(EvaluationSet("--pairs", source, each.name, each.checksum))
    collections = read_collections(options.retrieval)
    for path, collection in zip(options.retrieval, collections, strict=True):
        checksum = str(collection.metadata["sha256"])
        sets.append(EvaluationSet("--retrieval", str(path), collection.name, checksum))
    return sets


def _program(name: str) -> list[str]:
    return [sys.executable, "-m", "dystress_text", name]


def configurations(options: Namespace) -> dict[str, list[str]]:
    """Return the options of each configuration by name.

    Configurations are presets, or losses in one preset.
    """
    presets = [name for table in options.table for name in TABLES[table]] + options.presets
    if not options.loss:
        if not presets:
            raise UserError("nothing to run: name a --table, --presets, or a --loss")
        return {name: [f"--preset={name}"] for name in presets}
    if len(presets) > 1:
        raise UserError(f"--loss changes the loss of one preset, but got {', '.join(presets)}")
    preset = [f"--preset={name}" for name in presets]
    losses = [str(parse([*preset, f"--loss={loss}"]).loss) for loss in options.loss]
    return {as_folder(loss): [*preset, f"--loss={loss}"] for loss in losses}


def plan(options: Namespace, extra: Sequence[str]) -> list[PlannedRun]:
    """Return all runs, ordered by seed.

    Args:
        options: the options of the sweep.
        extra: options for the training program.

    Raises:
        UserError: a command line is wrong.
    """
    for argument in extra:
        if argument.split("=")[0] in SET_HERE:
            raise UserError(f"{argument}: not allowed after --, the sweep sets it")
    data = [] if options.data_dir is None else [f"--data_dir={options.data_dir}"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each run gives its own warnings
        named = configurations(options)
        train = {name: (*extra, *own, *data) for name, own in named.items()}
        losses = {name: str(parse(each).loss) for name, each in train.items()}
    baseline_named(options.baseline, losses)
    sets = sets_of(options)
    suite: tuple[str, ...] = ("--suite", options.suite)
    if options.data_dir is not None:
        suite += ("--data_dir", options.data_dir)
    content = cache(_content)  # the same for all seeds
    runs = []
    for seed, name in product(dict.fromkeys(options.seeds), named):
        folder = options.output_dir / f"{name}-seed-{seed}"
        own = (*train[name], f"--seed={seed}")
        runs.append(PlannedRun(folder, sets, suite, own, content=content))
    return runs


def initial_model(run: PlannedRun) -> PlannedRun:
    """Save the untrained model that a run starts from, and plan its evaluation."""
    folder = run.folder.with_name(UNTRAINED)
    save_untrained(parse(run.options or ()), folder)
    weights = load_model(str(folder), None)[1]["weights"]
    return PlannedRun(folder, run.sets, run.suite, weights=weights)


def save_untrained(settings: FineTuningSettings, folder: Path) -> None:
    """Save the model that a run starts from, without training it."""
    with restored_global_state(), quiet():
        text = training_text(settings.text)
        set_seed(settings.training.seed)
        initial = load_initial_model(settings.text, settings.given, text)
        prepare_data(text, initial, settings)  # scales a new static table
        save_model(initial.untrained, folder)


def sweep(options: Namespace, extra: Sequence[str]) -> bool:
    """Run all that is missing; return whether every run is trained and evaluated."""
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
        print(f"{count} in {output}", flush=True)
        planned = list(runs)
        if any(next(run.commands(), None) for run in runs):
            planned.insert(0, initial_model(runs[0]))
        failures = run_all(planned, logs)
        done = [run.folder for run in runs if run.folder.name not in failures]
        if done:
            untrained = [output / UNTRAINED] if results_in(output / UNTRAINED) else []
            compared = read_compared_models([*untrained, *done], options.baseline, PRESETS)
            print(f"\n{render(compared, 'text')}\n")
            print(leave_report(output, lambda: text_page(compared), "the runs"))
        print(f"{len(done)} done, {len(failures)} failed")
    return not failures


def run_all(runs: Sequence[PlannedRun], logs: Path) -> list[str]:
    """Train and evaluate runs one after another; return the names of those that failed.

    SIGTERM and Ctrl-C stop the current process, which first saves its state.

    Args:
        runs: the runs, in order.
        logs: the folder for the output of the processes.

    Raises:
        Interrupted: a signal stopped the sweep.
    """
    handlers: dict[int, Any] = {}

    def stop(number: int, _: object) -> None:
        for each in handlers:
            signal.signal(each, signal.SIG_IGN)  # the process saves its state once
        name = signal.Signals(number).name
        raise Interrupted(number, f"stopped by {name}; the same command continues")

    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, stop)
    try:
        return [run.folder.name for run in runs if not _run(run, logs)]
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


def _run(run: PlannedRun, logs: Path) -> bool:
    """Train and evaluate a run, each in a process; return whether all processes succeeded."""
    name = run.folder.name
    file = logs / f"{name}.log"
    try:
        for command in run.commands():
            with file.open("a", encoding="utf-8") as log:
                _wait_until_free(log)
                print(f"{name}: {command[3]}", flush=True)
                print(f"$ {shlex.join(command)}", file=log, flush=True)
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
                try:
                    code = process.wait()
                except Interrupted:
                    print("stopping a run, which saves its state", flush=True)
                    process.terminate()
                    process.wait()
                    raise
            if code != 0:
                last = file.read_text(encoding="utf-8", errors="replace").splitlines()[-1]
                raise UserError(f"{last}; exit code {code}, log: {file}")
    except UserError as error:
        print(f"failed: {name}: {error_line(error)}", file=sys.stderr, flush=True)
        return False
    return True


def _wait_until_free(log: IO[str]) -> None:
    """Wait for a process that a killed sweep left behind; then lock the log for the next one.

    A process inherits the open log as its output, and with it the lock, so it always holds it.
    """
    with suppress(ImportError, OSError):  # Windows has no fcntl, some disks have no locks
        import fcntl

        fcntl.flock(log, fcntl.LOCK_EX)
