"""What a reader of a sweep's tables must know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dystress_text.report.groups import groups_of
from dystress_text.report.runs import RunFigures, differing_otherwise
from dystress_text.report.tables import Comparisons
from dystress_text.simcse.presets import PRESETS
from dystress_text.training.presets import said_of


def notes_of(compared: Comparisons) -> list[str]:
    """The notes below the tables, each one a sentence or two."""
    runs = compared.runs
    notes = [f"Setup: {_setup(runs[0])}."]
    away = not_the_papers(runs)
    if away and any(group.paper(run) is not None for group in groups_of(runs) for run in runs):
        notes.append(
            f"Not the paper's setup ({', '.join(away)}): the lines 'ours - paper' say nothing about its claims."
        )
    said = {name: said_of(several[0].record) for name, several in compared.configurations.items()}
    notes += [f"{name}: preset of {row}." for name, row in said.items() if "differs" in row]
    otherwise = differing_otherwise(runs)
    if otherwise:
        notes.append(f"The configurations differ in more than the temperature: {', '.join(otherwise)}.")
    variants = sorted({variant for run in runs for variant in run.variants})
    notes += [f"Not the published data but a variant: {variant}." for variant in variants]
    notes += _notes_on_seeds(compared)
    if compared.resamples and any(run.pairs for run in runs):
        notes.append("Intervals over sentence pairs are for the models at hand: they hold for no other seed.")
    if len(compared.configurations) > 1 and not any(compared.pairs()):
        notes.append(
            "No configuration with a constant temperature is among these runs: nothing is tested; --baseline names "
            "another baseline."
        )
    left = [run.folder.name for run in runs if len(run.figures) == 1]
    if 0 < len(left) < len(runs):  # the others' figures stand in tables without them
        notes.append(f"Not evaluated: {', '.join(left)}.")
    if compared.unfinished:
        notes.append(f"Not finished and left out: {', '.join(compared.unfinished)}.")
    return notes


def _notes_on_seeds(compared: Comparisons) -> list[str]:
    notes = []
    single = [name for name, runs in compared.configurations.items() if len(runs) == 1]
    if single:
        notes.append(f"One seed: no interval, and no claim about a temperature: {', '.join(single)}.")
    least = min(len(runs) for runs in compared.configurations.values())
    if least > 1:
        notes.append(
            f"± is the standard deviation over seeds. p is that of the two-sided sign-flip test, at least "
            f"{2 / 2**least:.3g} with {least} seeds; 'all rows' is p after Benjamini and Hochberg over the table."
        )
    return notes


def _setup(run: RunFigures) -> str:
    """What was trained on what, in a line."""
    settings, corpus = run.record["settings"], run.record["corpus"]
    return (
        f"{Path(settings['model_name_or_path']).name}, {settings['pooler_type']}, {run.record['steps']:,} steps of "
        f"{settings['train_batch_size']}, learning rate {settings['learning_rate']:g}, {corpus['sentences']:,} "
        f"sentences (sha256 {corpus['sha256'][:12]}), {run.record['device']}"
    )


def not_the_papers(runs: Sequence[RunFigures]) -> list[str]:
    """The settings, apart from the temperature's, that are not those of the paper's text runs."""
    paper = {**PRESETS["paper"].settings, "max_steps": -1, "max_train_samples": None, "train_file": None}
    paper |= {"supervised": False, "bidirectional": False, "do_mlm": False, "lora_rank": None}
    del paper["eval_steps"], paper["objective"], paper["mixed_precision"]  # the setup's line has what was used
    away = [name for name, value in paper.items() if any(run.settings.get(name) != value for run in runs)]
    return away + ["mlp_only_train"] * any(run.settings["mlp_only_train"] is False for run in runs)
