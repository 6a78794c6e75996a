"""What the programs share: how they read arguments and how they end."""

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
Main = Callable[..., int]  # of a command line's arguments, by default those of the process
_SHORTEST = 8  # a shorter value is not a token, and replacing it would hide ordinary words


class _LocalRank(argparse.Action):
    """The rank that ``torch.distributed.launch`` passes to a program.

    It must be the environment's, which accelerate reads: each process would train alone.
    """

    def __call__(self, parser: object, namespace: object, rank: Any, *_: object) -> None:
        if rank >= 0 and os.environ.get("LOCAL_RANK") != str(rank):
            advice = "start with torchrun or accelerate launch"
            raise ParameterError("local_rank", f"{rank}, but LOCAL_RANK is not; {advice}")


class OneLineParser(argparse.ArgumentParser):
    """A parser that shows a program's docstring unchanged as help and whose errors are one line.

    Options have no abbreviations; dashes within a name count as underscores. ``elsewhere`` says
    where the options of another program are explained; an error about an unknown option ends in it.
    """

    def __init__(
        self, prog: str, description: str | None = None, elsewhere: str = "", **more: Any
    ) -> None:
        more.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(prog=prog, description=description, allow_abbrev=False, **more)
        self._elsewhere = f"; {elsewhere}" if elsewhere else ""
        absent = argparse.SUPPRESS
        self.add_argument("--local_rank", type=int, action=_LocalRank, default=absent, help=absent)
        # so that -1e-3 is a value and not an option
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        """Raise the message, where argparse would print its whole usage."""
        raise UserError(f"{message} (see --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, which all its ways to parse call; refuse an option that is unknown.

        The error names the nearest one.
        """
        known = self._option_string_actions
        argv = list(sys.argv[1:] if args is None else args)
        end = argv.index("--") if "--" in argv else len(argv)
        for i, argument in enumerate(argv[:end]):
            name, equals, value = argument.partition("=")
            ours = f"--{name[2:].replace('-', '_')}"
            if not name.startswith("--"):
                continue
            if ours in known:
                argv[i] = f"{ours}{equals}{value}"
            elif " " not in argument:  # with a space argparse takes it for a value
                hint = meant(name, known) or " (see --help)"
                if ours == "--local_rank":
                    hint = ", which a launcher adds: this program is one process, start it alone"
                raise UserError(f"unknown option {name}{hint}{self._elsewhere}")
        return super().parse_known_args(argv, namespace)


def without_tokens(text: str) -> str:
    """Return the text with stars in place of each access token of the hub.

    Tokens are what the environment says, and what has the form of one.
    """
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        token = os.environ.get(variable, "").strip()
        if len(token) >= _SHORTEST:
            text = text.replace(token, "***")
    return _TOKEN.sub("***", text)


def one_line(message: str) -> str:
    """Return a message that is safe to print: one line, no control characters, no access tokens."""
    line = ""
    for character in without_tokens(message):
        line += character if character.isprintable() else repr(character)[1:-1]
    return line


def program(prog: str, interrupted: str = "interrupted") -> Callable[[Work], Main]:
    """Decorator that makes a program of its work, a function of a command line's arguments.

    The program takes them, by default those of the process, and returns its :func:`exit_code`.
    """

    def decorate(work: Work) -> Main:
        def main(argv: Sequence[str] | None = None) -> int:
            arguments = list(sys.argv[1:] if argv is None else argv)
            return exit_code(prog, lambda: work(arguments), interrupted)

        return main

    return decorate


def exit_code(prog: str, work: Callable[[], bool | None], interrupted: str = "interrupted") -> int:
    """Run a program's work and return the exit code; ``interrupted`` is the message after Ctrl-C.

    The code is 0 if all is done, 1 if work returns False, as something is left, 2 after a one-line
    error, and 128 + the number of a signal.
    """
    formatwarning = warnings.formatwarning
    warnings.formatwarning = partial(_warning, prog)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name need not be valid text
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
        message = "stopped: the reader of its output has ended"
        code = 128 + signal.SIGPIPE
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that flushing at exit does not fail again
    finally:
        warnings.formatwarning = formatwarning
    line = f"{prog}: {message}"
    print(line, file=sys.stderr, flush=True)
    if code == 2:
        _tell_launcher(line)
    return code


def _warning(prog: str, message: Warning | str, *_: object, **__: object) -> str:
    text = " ".join(str(message).split())
    return f"{prog}: warning: {one_line(text)}\n"


def _tell_launcher(line: str) -> None:
    """Leave the line where torchrun quotes it at its end; announce what accelerate adds to it."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        extra = {"py_callstack": line, "timestamp": str(int(time.time()))}
        content = json.dumps({"message": {"message": line, "extraInfo": extra}})
        with suppress(OSError):
            Path(file).write_text(content, encoding="utf-8")
    elif "ACCELERATE_DYNAMO_BACKEND" in os.environ:  # its launcher sets it for one process
        print(
            "(accelerate launch adds its own traceback; --quiet before the program's name: none)",
            file=sys.stderr,
        )
