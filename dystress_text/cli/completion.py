"""Completion of a command line in the shell."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import shtab

SHELLS: tuple[str, ...] = tuple(shtab.SUPPORTED_SHELLS)
_FILES = ("model", "model_name_or_path", "pairs")  # options that take a file or folder; others by their last part


def completion_script(command: str, parts: Mapping[str, tuple[argparse.ArgumentParser, str]], shell: str) -> str:
    """A script that completes a command with subcommands, their options and values.

    Args:
        command: the command's name.
        parts: parser and description of each subcommand.
        shell: one of :data:`SHELLS`.
    """
    parser = argparse.ArgumentParser(command)
    subcommands = parser.add_subparsers()
    for name, (options, about) in parts.items():
        for action in options._actions:
            if action.type is Path or action.dest in _FILES or action.dest.endswith(("file", "files", "dir")):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        subcommands.add_parser(name, parents=[options], add_help=False, help=about)
    return shtab.complete(parser, shell)
