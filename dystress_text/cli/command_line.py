"""Parse the arguments of a program, and turn its errors into one line and an exit code."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from dystress_text.errors import Interrupted, ParameterError, UserError, meant

_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")
Work = Callable[[list[str]], bool | None]
Main = Callable[..., int]  # takes argv, by default that of the process
_SHORTEST = 8  # a shorter value is not a token


class _LocalRank(argparse.Action):
    """Check the rank from ``torch.distributed.launch`` against the environment's.

    accelerate reads the latter; without it each process would train alone.
    """

    def __call__(self, parser: object, namespace: object, rank: Any, *_: object) -> None:
        if rank >= 0 and os.environ.get("LOCAL_RANK") != str(rank):
            advice = "start with torchrun or accelerate launch"
            raise ParameterError("local_rank", f"{rank}, but LOCAL_RANK is not; {advice}")


class OneLineParser(argparse.ArgumentParser):
    """A parser with one-line errors, whose help shows the description unchanged.

    Options cannot be abbreviated; dashes in their names count as underscores. ``elsewhere`` is
    added to the error about an unknown option.
    """

    def __init__(
        self, prog: str, description: str | None = None, elsewhere: str = "", **more: Any
    ) -> None:
        more.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(prog=prog, description=description, allow_abbrev=False, **more)
        self._elsewhere = f"; {elsewhere}" if elsewhere else ""
        absent = argparse.SUPPRESS
        self.add_argument("--local_rank", type=int, action=_LocalRank, default=absent, help=absent)
        # accept -1e-3 as a value
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        """Raise the message, without argparse's usage."""
        raise UserError(f"{message} (see --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but reject an unknown option and suggest the nearest one."""
        known = self._option_string_actions
        argv = list(sys.argv[1:] if args is None else args)
        end = argv.index("--") if "--" in argv else len(argv)
        for i, argument in enumerate(argv[:end]):
            name, equals, value = argument.partition("=")
            option = f"--{name[2:].replace('-', '_')}"
            if not name.startswith("--"):
                continue
            if option in known:
                argv[i] = f"{option}{equals}{value}"
            elif " " not in argument:  # with a space it is a value
                hint = meant(name, known) or " (see --help)"
                raise UserError(f"unknown option {name}{hint}{self._elsewhere}")
        return super().parse_known_args(argv, namespace)


def without_tokens(text: str) -> str:
    """Return the text with stars in place of access tokens of the hub."""
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        token = os.environ.get(variable, "").strip()
        if len(token) >= _SHORTEST:
            text = text.replace(token, "***")
    return _TOKEN.sub("***", text)


def one_line(message: str) -> str:
    """Return a message as one line without control characters and access tokens."""
    line = ""
    for character in without_tokens(message):
        line += character if character.isprintable() else repr(character)[1:-1]
    return line


def program(prog: str, interrupted: str = "interrupted") -> Callable[[Work], Main]:
    """Decorate a function of argv as a program that returns its :func:`exit_code`.

    Args:
        prog: name in messages.
        interrupted: message after Ctrl-C.
    """

    def decorate(work: Work) -> Main:
        def main(argv: Sequence[str] | None = None) -> int:
            arguments = list(sys.argv[1:] if argv is None else argv)
            return exit_code(prog, lambda: work(arguments), interrupted)

        return main

    return decorate


def exit_code(prog: str, work: Callable[[], bool | None], interrupted: str = "interrupted") -> int:
    """Run a program's work and return the exit code.

    Returns:
        0, or 1 if ``work`` returns False, 2 after a UserError, 128 + the number of a signal.
    """
    formatwarning = warnings.formatwarning
    warnings.formatwarning = partial(_warning, prog)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may be invalid text
    try:
        return int(work() is False)
    except UserError as error:
        dashes = "--" if isinstance(error, ParameterError) else ""
        message = f"error: {dashes}{one_line(str(error))}"
        code = 2
    except Interrupted as stop:
        message = str(stop)
        code = 128 + stop.signal
    except KeyboardInterrupt:
        message = interrupted
        code = 128 + signal.SIGINT
    except BrokenPipeError:  # ``| head``
        message = "stopped: its output was closed"
        code = 128 + signal.SIGPIPE
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else flushing at exit fails again
    finally:
        warnings.formatwarning = formatwarning
    line = f"{prog}: {message}"
    print(line, file=sys.stderr, flush=True)
    if code == 2:
        _report_to_torchrun(line)
    return code


def _warning(prog: str, message: Warning | str, *_: object, **__: object) -> str:
    text = " ".join(str(message).split())
    return f"{prog}: warning: {one_line(text)}\n"


def _report_to_torchrun(line: str) -> None:
    """Write the line to the file that torchrun quotes at its end."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        extra = {"py_callstack": line, "timestamp": str(int(time.time()))}
        content = json.dumps({"message": {"message": line, "extraInfo": extra}})
        with suppress(OSError):
            Path(file).write_text(content, encoding="utf-8")
