"""What a run's record says about the row of the paper's tables that its preset stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from dystress_text.core.registry import Temperature
from dystress_text.training.build_loss import TEMPERATURE_OPTIONS
from dystress_text.training.checkpoints import FREE_OPTIONS
from dystress_text.training.presets import Preset

PAPER = "paper"  # the entry of the record
# options that no row has: places and logs, chance, and how the same numbers are computed
_NOT_OF_A_ROW = {*FREE_OPTIONS, "seed", "grad_cache_chunk", "packing", "skip_corrupt", "sync_batchnorm", "knn_k",
                 "per_device_train_batch_size", *TEMPERATURE_OPTIONS}  # fmt: skip
_OF_A_ROW = {"train_file", "dataset"}  # resuming a run compares these by content
Settings = TypeVar("Settings")


def settings_of(preset: Preset, group: type[Settings]) -> Settings:
    """The options of a dataclass as a preset has them, without any flags."""
    names = {entry.name for entry in fields(group)}  # type: ignore[arg-type]  # a dataclass
    return group(**{name: value for name, value in preset.settings.items() if name in names})


def trained_with(options: Mapping[str, Any], temperature: Temperature | None, batch: int) -> dict[str, Any]:
    """The options that a row of a table has or could have.

    Args:
        options: all options by name.
        temperature: of the run; its values take the place of its options. None where there is none.
        batch: samples over all processes.
    """
    kept = {n: value for n, value in options.items() if n not in _NOT_OF_A_ROW or n in _OF_A_ROW}
    return kept | {"temperature": None if temperature is None else repr(temperature), "train_batch_size": batch}


def entry_of(preset: Preset, run: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The record's entry, empty for a preset without a row of the paper.

    Args:
        preset: of the run.
        run: what was trained, from :func:`trained_with`.
        row: the same of the preset alone.
    """
    if not preset.rows:
        return {}
    changed = [f"--{name} {run[name]} (row: {value})" for name, value in row.items() if run[name] != value]
    return {PAPER: {"rows": list(preset.rows), "differs": ", ".join(changed)}}


def rows_of(record: Mapping[str, Any]) -> list[str]:
    """The rows that a record names; [] for an older one and for a run without a row."""
    entry = record.get(PAPER)
    return [str(row) for row in entry.get("rows", ())] if isinstance(entry, Mapping) else []


def said_of(record: Mapping[str, Any]) -> str:
    """The row of a record and in what the run differs from it, in words; empty where there is none."""
    rows = rows_of(record)
    if not rows:
        return ""
    differs = record[PAPER].get("differs")
    return f"{rows[0]}; differs from the row in {differs}" if differs else rows[0]
