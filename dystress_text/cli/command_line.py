"""What the programs share: how they read arguments and how they end."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from dystress_text.errors import Interrupted, ParameterError, UserError, meant

_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")
Work = Callable[[list[str]], bool | None]
_SHORTEST = 8  # a shorter value is not a token, and replacing it would hide ordinary words


class OneLineParser(argparse.ArgumentParser):
    """A parser that shows a program's docstring unchanged as help and whose errors are one line.

    Options have no abbreviations; dashes within a name count as underscores. ``elsewhere`` says
    where the options of another program are explained; an error about an unknown option ends in it.
    """

    def __init__(
        self, prog: str, description: str | None = None, elsewhere: str = "", **more: Any
    ) -> None:
        more = {
            "formatter_class": argparse.RawDescriptionHelpFormatter,
            "allow_abbrev": False,
            **more,
        }
        super().__init__(prog=prog, description=description, **more)
        self._elsewhere = f"; {elsewhere}" if elsewhere else ""
        self._negative_number_matcher = re.compile(
            r"-\.?\d"
        )  # so that -1:0.03 is a value and not an option

    def error(self, message: str) -> NoReturn:
        """Raise the message, where argparse would print its whole usage."""
        raise UserError(f"{message} (see --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, which all its ways to parse call; an unknown option is refused, and the
        nearest one named.
        """
        options, words = self._option_string_actions, list(sys.argv[1:] if args is None else args)
        for i, word in enumerate(words[: words.index("--") if "--" in words else None]):
            name, equals, value = word.partition("=")
            ours = f"--{name[2:].replace('-', '_')}"
            if name.startswith("--") and ours in options:
                words[i] = f"{ours}{equals}{value}"
            elif (
                name.startswith("--") and " " not in word
            ):  # with a space argparse takes it for a value
                hint = meant(name, options) or " (see --help)"
                raise UserError(f"unknown option {name}{hint}{self._elsewhere}")
        return super().parse_known_args(words, namespace)


def without_tokens(text: str) -> str:
    """The text with stars in place of each access token of the hub: the environment's, and what has
    the form of one.
    """
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        token = os.environ.get(variable, "").strip()
        if len(token) >= _SHORTEST:
            text = text.replace(token, "***")
    return _TOKEN.sub("***", text)


def one_line(message: str) -> str:
    """A message that is safe to print: on one line, without control characters and access tokens."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in without_tokens(message))


class Main(Protocol):
    """A program."""

    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


def program(prog: str, interrupted: str = "interrupted") -> Callable[[Work], Main]:
    """Decorator that makes a program of its work, a function of the words of a command line.

    The program takes the words, by default those of the process, and returns its :func:`exit_code`.
    """

    def decorate(work: Work) -> Main:
        def main(argv: Sequence[str] | None = None) -> int:
            return exit_code(
                prog, lambda: work(list(sys.argv[1:] if argv is None else argv)), interrupted
            )

        return main

    return decorate


def exit_code(prog: str, work: Callable[[], bool | None], interrupted: str = "interrupted") -> int:
    """Run a program's work and return the exit code; ``interrupted`` is the message after Ctrl-C.

    The code is 0 if all is done, 1 if work returns False, as something is left, 2 after a one-line
    error, and 128 + the number of a signal.
    """
    as_it_was, stdout = warnings.formatwarning, sys.stdout
    errors = getattr(stdout, "errors", None)
    warnings.formatwarning = lambda message, *_, **__: (
        f"{prog}: warning: {one_line(' '.join(str(message).split()))}\n"
    )
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors="backslashreplace")  # a file's name need not be valid text
    try:
        return 1 if work() is False else 0
    except UserError as error:
        dashes = "--" if isinstance(error, ParameterError) else ""
        line = f"{prog}: error: {dashes}{one_line(str(error))}"
        print(line, file=sys.stderr, flush=True)
        _tell_launcher(line)
        return 2
    except Interrupted as stop:
        print(f"{prog}: {stop}", file=sys.stderr, flush=True)
        return 128 + stop.signal
    except KeyboardInterrupt:
        print(f"{prog}: {interrupted}", file=sys.stderr, flush=True)
        return 130
    except BrokenPipeError:  # ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that flushing at exit does not fail again
        print(f"{prog}: stopped: the reader of its output has ended", file=sys.stderr, flush=True)
        return 128 + signal.SIGPIPE
    finally:
        warnings.formatwarning = as_it_was
        if isinstance(stdout, io.TextIOWrapper) and not stdout.closed:
            stdout.reconfigure(errors=errors)


def _tell_launcher(line: str) -> None:
    """Leave the line where torchrun quotes it at its end; say what follows it where accelerate
    started one process.
    """
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = {"py_callstack": line, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError):
            Path(file).write_text(
                json.dumps({"message": {"message": line, "extraInfo": extra}}), encoding="utf-8"
            )
    elif "ACCELERATE_DYNAMO_BACKEND" in os.environ:  # its launcher sets it
        print(
            "(accelerate launch adds its own traceback; --quiet before the program's name: none)",
            file=sys.stderr,
        )
