"""Sentence embeddings with a temperature that depends on the similarity of each pair.

    dystress train --preset quickstart      # no network, no GPU, two minutes; the model is in out/
    dystress senteval --model out --suite mini

dystress COMMAND --help says more. On several GPUs or processes: accelerate launch -m dystress_text.train
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

from dystress_text import __version__
from dystress_text.cli.command_line import exit_code
from dystress_text.errors import UserError, meant

COMMANDS = {  # module with ``main``, loaded when it is called, and what it does
    "train": ("dystress_text.programs.train", "fine-tune an encoder, unsupervised or on pairs"),
    "senteval": ("dystress_text.programs.senteval", "evaluate a model on the STS and transfer tasks"),
    "prepare": ("dystress_text.programs.prepare", "get data sets ready"),
    "audit": ("dystress_text.programs.audit", "which constant temperature a rule amounted to, from a run's log"),
    "export": ("dystress_text.programs.export", "copies for transformers, ONNX Runtime, the hub"),
    "sweep": ("dystress_text.programs.sweep", "train and evaluate many configurations with several seeds"),
    "report": ("dystress_text.programs.report", "tables and pages of runs, with tests against constant temperatures"),
    "figures": ("dystress_text.programs.figures", "the paper's figures of temperatures"),
}


def _own_command(command: str) -> bool:
    """What this module does itself: guide and version."""
    if command == "--version":
        print(f"dystress-text {__version__}", flush=True)
    elif command in ("-h", "--help", "help"):
        lines = [f"  {name:11} {about}" for name, (_, about) in COMMANDS.items()]
        print(f"dystress {__version__}: {__doc__}\n" + "\n".join(["commands:", *lines]), flush=True)
    else:
        raise UserError(f"unknown command {command!r}{meant(command, COMMANDS)}; commands are {', '.join(COMMANDS)}")
    return True


def program(command: str) -> ModuleType:
    """The module of a command."""
    module: ModuleType = pkgutil.resolve_name(f"{COMMANDS[command][0]}:")
    return module


def main(argv: Sequence[str] | None = None) -> int:
    """The console command; returns the exit code of the program that it calls."""
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in COMMANDS:
        return int(program(command).main(rest))
    return exit_code("dystress", lambda: _own_command(command))


if __name__ == "__main__":
    sys.exit(main())
