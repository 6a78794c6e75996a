"""What the items share: the training programs called in this process, their logs, and the line of results."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState, GradientState

from dystress_text.training.run_folder import read_steps

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))

from devices import device_name, here, wait  # noqa: E402  # from there

__all__ = [
    "IMAGES", "ROOT", "SMALL_ENCODER", "TEXT", "call", "device_name", "here", "lines_of", "losses_of", "report", "wait",
    "write_rows",
]  # fmt: skip

SMALL_ENCODER = str(ROOT / "dystress_text" / "embedded" / "bert-mini-wiki")
TEXT = ["--preset", "small", "--model_name_or_path", SMALL_ENCODER, "--eval_set", "none", "--eval_steps", "0"]
IMAGES = ["--preset", "quickstart", "--knn_k", "0", "--eval_steps", "0"]


def report(result: dict[str, Any]) -> None:
    """Print the last line, which kit.py reads."""
    print(json.dumps(result), flush=True)


def losses_of(folder: Path) -> list[float | None]:
    """The losses in the log of a run, one a log line; None for one that is not finite."""
    return [line["loss"] for line in read_steps(folder / "metrics.jsonl") if "loss" in line]


def call(program: Callable[[Sequence[str]], int], words: Sequence[str]) -> str | None:
    """Run a program in this process; its last words where it fails, else None."""
    AcceleratorState._reset_state(reset_partial_state=True)  # accelerate keeps its state for the life of a process
    GradientState._reset_state()
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            code = program(words)
        except Exception as error:  # the other runs of the item go on
            return f"{type(error).__name__}: {error}"
    return None if code == 0 else (said.getvalue().strip().splitlines() or [f"exit code {code}"])[-1]


def lines_of(corpus: Path, count: int) -> list[str]:
    """The first sentences of a file."""
    with corpus.open(encoding="utf-8") as file:
        return [line.strip() for line, _ in zip(file, range(count), strict=False)]


def write_rows(corpus: Path, file: Path, columns: int, rows: int) -> list[str]:
    """A table of different sentences in each row, for --supervised; returns the options that name it."""
    sentences = lines_of(corpus, columns * rows)
    quoted = ['"' + sentence.replace('"', '""') + '"' for sentence in sentences]
    lines = [",".join(quoted[i : i + columns]) for i in range(0, len(quoted) - columns + 1, columns)]
    file.write_text("\n".join([",".join(f"sent{k}" for k in range(columns)), *lines]) + "\n", encoding="utf-8")
    return ["--supervised", "--train_file", str(file)]
