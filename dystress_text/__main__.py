"""Sentence embeddings with a temperature that depends on the similarity of each pair.

    dystress train --preset quickstart      # no network, no GPU, two minutes; the model is in out/
    dystress evaluate --model out --suite mini

dystress COMMAND --help says more. On several GPUs or processes: accelerate launch -m
dystress_text.train
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from dystress_text import __version__
from dystress_text.cli.command_line import exit_code
from dystress_text.errors import UserError, meant

COMMANDS = {  # modules of ``programs`` with ``main``, loaded when called, and what they do
    "train": "fine-tune an encoder, unsupervised or on pairs",
    "evaluate": "evaluate a model on the STS and transfer tasks",
    "judge": "compare models by your own judgements of what they find",
    "prepare": "get data sets ready",
    "audit": "find the constant temperature that the loss of a run amounts to",
    "export": "copies for transformers, ONNX Runtime, the hub",
    "sweep": "train and evaluate many configurations with several seeds",
    "report": "tables and pages of runs, with paired differences",
}
OTHER_NAMES = {"senteval": "evaluate"}


def _own_command(command: str) -> None:
    if command == "--version":
        print(f"dystress-text {__version__}", flush=True)
    elif command in ("-h", "--help", "help"):
        lines = [f"  {name:11} {about}" for name, about in COMMANDS.items()]
        print(f"dystress {__version__}: {__doc__}\n" + "\n".join(["commands:", *lines]), flush=True)
    else:
        known = ", ".join(COMMANDS)
        raise UserError(
            f"unknown command {command!r}{meant(command, COMMANDS)}; commands are {known}"
        )


def program(command: str) -> ModuleType:
    """Import the module of a command, or refuse an unknown command."""
    return importlib.import_module(f"dystress_text.programs.{command}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console command; return the exit code of the program that it calls."""
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    command = OTHER_NAMES.get(command, command)
    if command in COMMANDS:
        return int(program(command).main(rest))
    return exit_code("dystress", lambda: _own_command(command))


if __name__ == "__main__":
    sys.exit(main())
