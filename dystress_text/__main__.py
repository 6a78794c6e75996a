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
from dystress_text.cli.command_line import OneLineParser, exit_code, near_or_all
from dystress_text.cli.completion import SHELLS, completion_script
from dystress_text.errors import UserError

COMMANDS = {  # module with ``main`` and ``make_parser``, loaded when it is called, and what it does
    "train": ("dystress_text.train", "fine-tune an encoder, unsupervised or on pairs"),
    "senteval": ("dystress_text.senteval", "evaluate a model on the STS and transfer tasks"),
    "prepare": ("dystress_text.preparation.__main__", "get data sets ready"),
    "audit": ("dystress_text.audit", "which constant temperature a rule amounted to, from a run's log"),
    "export": ("dystress_text.export.__main__", "copies for transformers, ONNX Runtime, older releases, the hub"),
    "sweep": ("dystress_text.sweep", "train and evaluate many configurations with several seeds"),
    "report": ("dystress_text.report.__main__", "tables and pages of runs, with tests against constant temperatures"),
    "figures": ("dystress_text.figures", "the paper's figures, and curves of runs"),
    "presets": ("dystress_text.presets", "settings by name: one for each row of the paper"),
}


def _guide() -> str:
    lines = (f"  {name:11} {about}" for name, (_, about) in COMMANDS.items())
    last = f"  {'completion':11} completion of all this in your shell: {', '.join(SHELLS)}"
    return f"dystress {__version__}: {__doc__}\n" + "\n".join(["commands:", *lines, last])


def program(command: str) -> ModuleType:
    """The module of a command."""
    module: ModuleType = pkgutil.resolve_name(f"{COMMANDS[command][0]}:")
    return module


def completion_parser() -> OneLineParser:
    """The options of ``dystress completion``."""
    parser = OneLineParser(
        "dystress completion",
        "Print the script that completes dystress' commands and options. Print it again after an update: it knows one "
        "version.\n\n    dystress completion bash > ~/.local/share/bash-completion/completions/dystress\n"
        "    dystress completion zsh > ~/.zfunc/_dystress    # a folder of zsh's fpath\n"
        "    dystress completion fish > ~/.config/fish/completions/dystress.fish",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that the script is for")
    return parser


def _own_command(command: str, rest: Sequence[str]) -> bool:
    """What this module does itself: guide, version, completion."""
    if command in ("-h", "--help", "help"):
        print(_guide(), flush=True)
    elif command == "--version":
        print(f"dystress-text {__version__}", flush=True)
    elif command == "completion":
        shell = completion_parser().parse_args(rest).shell
        parts = {name: (program(name).make_parser(), about) for name, (_, about) in COMMANDS.items()}
        print(completion_script("dystress", parts, shell), flush=True)
    else:
        raise UserError(f"unknown command {command!r}; {near_or_all(command, COMMANDS, 1, 'commands are')}")
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """The console command; returns the exit code of the program that it calls."""
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in COMMANDS:
        return int(program(command).main(rest))
    prog = "dystress completion" if command == "completion" else "dystress"
    return exit_code(prog, lambda: _own_command(command, rest))


if __name__ == "__main__":
    sys.exit(main())
