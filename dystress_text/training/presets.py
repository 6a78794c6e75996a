"""Presets: named settings that replace a program's defaults and that its flags override.

A preset may stand for a row of the paper's tables; a run's record then says in what the run differs from that row.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from dystress_text.core.registry import Temperature
from dystress_text.errors import ParameterError
from dystress_text.training.accelerator import global_batch_size
from dystress_text.training.settings import FREE_OPTIONS, TEMPERATURE_OPTIONS

PAPER = "paper"  # the entry of the record
# options that no row has: places and logs, chance, and how the same numbers are computed; the temperature is compared
# as a whole
_NOT_OF_A_ROW = {*FREE_OPTIONS, "seed", "grad_cache_chunk", "packing", "skip_corrupt", "sync_batchnorm", "knn_k",
                 "per_device_train_batch_size", *TEMPERATURE_OPTIONS} - {"train_file", "dataset"}  # fmt: skip


@dataclass(frozen=True)
class Preset:
    """Settings with a description.

    Attributes:
        about: what the settings are for, and the row of the paper's table that they reproduce.
        settings: values by option name; other options keep their defaults.
        rows: of the paper's tables, such as ``Table stsresall, row MACL (repro.)``; the line is about the first.
    """

    about: str
    settings: dict[str, Any]
    rows: tuple[str, ...] = ()


def find_preset(name: str, presets: Mapping[str, Preset]) -> Preset:
    """The preset of that name; an error names similar ones."""
    if name not in presets:
        near = difflib.get_close_matches(name, presets, 3) or presets
        raise ParameterError(
            "preset", f"unknown preset {name!r}; known are {', '.join(near)} (--list_presets shows all)"
        )
    return presets[name]


def listing(presets: Mapping[str, Preset]) -> str:
    """A line for each preset: its name and what it stands for."""
    width = max(len(name) for name in presets)
    return "\n".join(f"{name.ljust(width)}  {preset.about}" for name, preset in presets.items())


def paper_row(
    preset: Preset,
    settings: Any,
    processes: int,
    temperature_of: Callable[[Any], Temperature | None],
    not_compared: Collection[str] = (),
) -> dict[str, Any]:
    """The record's entry about the row that the preset stands for, and in what a run differs; empty without a row.

    Args:
        preset: of the run.
        settings: of the run, a dataclass of groups; ``loss`` and ``engine`` are among them.
        processes: their number.
        temperature_of: what a group ``loss`` makes; None where it has no temperature.
        not_compared: options that no row of these presets has.
    """
    if not preset.rows:
        return {}
    groups = {name: type(group) for name, group in vars(settings).items() if is_dataclass(group)}
    of_preset = replace(settings, **{name: _as_in(preset, kind) for name, kind in groups.items()})
    run, row = settings.options(), of_preset.options()
    run["train_batch_size"] = global_batch_size(settings.engine, processes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a falling logit is said where the run's own temperature is built
        run["temperature"], row["temperature"] = (repr(temperature_of(each.loss)) for each in (settings, of_preset))
    changed = [name for name in row if name not in {*_NOT_OF_A_ROW, *not_compared} and run[name] != row[name]]
    differs = ", ".join(f"--{name} {run[name]} (row: {row[name]})" for name in changed)
    return {PAPER: {"rows": list(preset.rows), "differs": differs}}


def _as_in(preset: Preset, group: type) -> Any:
    """The options of a dataclass as a preset has them, without any flags."""
    names = {entry.name for entry in fields(group)}
    return group(**{name: value for name, value in preset.settings.items() if name in names})


def rows_of(record: Mapping[str, Any]) -> list[str]:
    """The rows that a run's record names."""
    rows: list[str] = record.get(PAPER, {}).get("rows", [])
    return rows


def said_of(record: Mapping[str, Any]) -> str:
    """The row of a record and in what the run differs from it, in words; empty where there is none."""
    if not rows_of(record):
        return ""
    row, differs = rows_of(record)[0], record[PAPER]["differs"]
    return f"{row}; differs from the row in {differs}" if differs else row
