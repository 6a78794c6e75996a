"""Presets: named settings that replace a program's defaults and that its flags override.

A preset may stand for a row of the paper's tables; a run's record then says in what the run differs from that row.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from dystress_text.errors import ParameterError
from dystress_text.training.settings import FREE_OPTIONS, TEMPERATURE_OPTIONS

PAPER = "paper"  # the entry of the record
# options that no row has: places and logs, chance, and how the same numbers are computed; the temperature is compared
# as a whole
_NOT_OF_A_ROW = {*FREE_OPTIONS, "seed", "grad_cache_chunk", "packing", "skip_corrupt", "sync_batchnorm", "knn_k",
                 "per_device_train_batch_size", *TEMPERATURE_OPTIONS} - {"train_file", "dataset"}  # fmt: skip
Settings = TypeVar("Settings")


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


def settings_of(preset: Preset, group: type[Settings]) -> Settings:
    """The options of a dataclass as a preset has them, without any flags."""
    names = {entry.name for entry in fields(group)}  # type: ignore[arg-type]  # a dataclass
    return group(**{name: value for name, value in preset.settings.items() if name in names})


def trained_with(options: Mapping[str, Any], temperature: object, batch: int) -> dict[str, Any]:
    """The options that a row of a table has or could have.

    Args:
        options: all options by name.
        temperature: of the run, None where there is none; its text takes the place of its options.
        batch: samples over all processes.
    """
    kept = {name: value for name, value in options.items() if name not in _NOT_OF_A_ROW}
    return kept | {"temperature": None if temperature is None else repr(temperature), "train_batch_size": batch}


def entry_of(preset: Preset, run: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The record's entry about the row, from :func:`trained_with` of the run and of its preset alone."""
    if not preset.rows:
        return {}
    changed = [f"--{name} {run[name]} (row: {value})" for name, value in row.items() if run[name] != value]
    return {PAPER: {"rows": list(preset.rows), "differs": ", ".join(changed)}}


def rows_of(record: Mapping[str, Any]) -> list[str]:
    """The rows that a run's record names."""
    entry = record.get(PAPER)
    return [str(row) for row in entry.get("rows", ())] if isinstance(entry, Mapping) else []


def said_of(record: Mapping[str, Any]) -> str:
    """The row of a record and in what the run differs from it, in words; empty where there is none."""
    rows = rows_of(record)
    differs = record[PAPER].get("differs") if rows else None
    return f"{rows[0]}; differs from the row in {differs}" if differs else "".join(rows[:1])
