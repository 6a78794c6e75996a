"""Sentence embeddings with a temperature that depends on the similarity of each pair.

    dystress train --preset quickstart      # no network, no GPU, two minutes; the model is in out/
    dystress senteval --model out --suite mini

dystress COMMAND --help says more. On several GPUs or processes: accelerate launch -m dystress_text.train
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

from dystress_text import __version__
from dystress_text.cli.command_line import OneLineParser, exit_code, near_or_all
from dystress_text.cli.completion import SHELLS, completion_script
from dystress_text.errors import UserError

COMMANDS = {
    "train": "fine-tune an encoder, unsupervised or on pairs",
    "senteval": "evaluate a model on the STS and transfer tasks",
    "prepare": "get data sets ready",
    "audit": "which constant temperature a rule amounts to, from a run's log or without training",
    "export": "copies for transformers, ONNX Runtime, older releases, the hub",
    "sweep": "train and evaluate many configurations with several seeds",
    "report": "tables and pages of runs, with tests against constant temperatures",
    "figures": "the paper's figures, and curves of runs",
    "presets": "settings by name: one for each row of the paper",
}


def _guide() -> str:
    lines = (f"  {name:11} {about}" for name, about in COMMANDS.items())
    last = f"  {'completion':11} completion of all this in your shell: {', '.join(SHELLS)}"
    return f"dystress {__version__}: {__doc__}\n" + "\n".join(["commands:", *lines, last])


def program(command: str) -> ModuleType:
    """The module of a command, with ``main`` and ``make_parser``; it is loaded when asked for, as some take seconds.

    Raises:
        UserError: there is no such command.
    """
    match command:
        case "train":
            from dystress_text import train

            return train
        case "senteval":
            from dystress_text import senteval

            return senteval
        case "prepare":
            from dystress_text.preparation import __main__ as prepare

            return prepare
        case "audit":
            from dystress_text import audit

            return audit
        case "export":
            from dystress_text.export import __main__ as export

            return export
        case "sweep":
            from dystress_text import sweep

            return sweep
        case "report":
            from dystress_text.report import __main__ as report

            return report
        case "figures":
            from dystress_text import figures

            return figures
        case "presets":
            from dystress_text import presets

            return presets
    raise UserError(f"unknown command {command!r}; {near_or_all(command, COMMANDS, 1, 'commands are')}")


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


def main(argv: Sequence[str] | None = None) -> int:
    """The console command; returns the exit code of the program that it calls."""
    words = list(sys.argv[1:] if argv is None else argv)
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    programs: list[ModuleType] = []

    def work() -> bool:
        if command in ("-h", "--help", "help"):
            print(_guide(), flush=True)
        elif command == "--version":
            print(f"dystress-text {__version__}", flush=True)
        elif command == "completion":
            shell = completion_parser().parse_args(rest).shell
            parts = {name: (program(name).make_parser(), about) for name, about in COMMANDS.items()}
            print(completion_script("dystress", parts, shell), flush=True)
        else:
            programs.append(program(command))
        return True

    code = exit_code(f"dystress {command}" if command == "completion" else "dystress", work)
    return int(programs[0].main(rest)) if programs else code


if __name__ == "__main__":
    sys.exit(main())
