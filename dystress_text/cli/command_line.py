"""Parse the arguments of a program; turn its errors into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from io import TextIOWrapper
from typing import Any, NoReturn

from dystress_text.errors import (
    ParameterError,
    UserError,
    is_out_of_memory,
    meant,
    reason_of,
)

_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")
# what is quoted, and stays, or a parameter
_PARAMETER = re.compile(r"""((?<!\w)'[^']*'|"[^"]*")|`([a-z_]+)`""")
Work = Callable[[list[str]], bool | None]
Main = Callable[..., int]  # takes argv, by default that of the process


class OneLineParser(argparse.ArgumentParser):
    """A parser with one-line errors that prints its description as it is written.

    Options cannot be abbreviated; dashes in their names count as underscores. The ``epilog`` also
    ends the error about unknown options.
    """

    def __init__(self, prog: str, description: str | None = None, **more: Any) -> None:
        more.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(prog=prog, description=description, allow_abbrev=False, **more)
        # torch.distributed.launch passes it, but sets LOCAL_RANK too, which counts
        self.add_argument("--local_rank", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        # accept -1e-3 as a value
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but reject all unknown options at once."""
        known = self._option_string_actions
        shown = [name for name, action in known.items() if action.help is not argparse.SUPPRESS]
        argv = list(sys.argv[1:] if args is None else args)
        end = argv.index("--") if "--" in argv else len(argv)
        unknown = []
        for i, argument in enumerate(argv[:end]):
            name, equals, value = argument.partition("=")
            option = f"--{name[2:].replace('-', '_')}"
            if not name.startswith("--"):
                continue
            if option in known:
                argv[i] = f"{option}{equals}{value}"
            elif " " not in argument:  # with a space it is a value
                unknown.append(name)
        if unknown:
            named = ", ".join(name + meant(name, shown) for name in unknown)
            more = f"; {self.epilog}" if self.epilog else ""
            raise UserError(f"unknown option {named} (see --help){more}")
        parsed, rest = super().parse_known_args(argv, namespace)
        if hasattr(parsed, "local_rank"):
            del parsed.local_rank
        return parsed, rest


def without_tokens(text: str) -> str:
    """Return the text with asterisks in place of the hub's access tokens."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if token:
        text = text.replace(token, "***")
    return _TOKEN.sub("***", text)


def with_options(message: str) -> str:
    """Return a message of the library with its parameters, such as `seed`, as options.

    What is in quotation marks, such as the name of a file, stays.
    """
    return _PARAMETER.sub(lambda found: found[1] or f"--{found[2]}", message)


def one_line(message: str) -> str:
    """Return a message as one line, without control characters and access tokens."""
    line = ""
    for character in without_tokens(message):
        line += character if character.isprintable() else repr(character)[1:-1]
    return line


def error_line(error: UserError) -> str:
    """Return the message of an error as one line with options."""
    return one_line(with_options(str(error)))


def program(prog: str, interrupted: str = "interrupted") -> Callable[[Work], Main]:
    """Decorate a function of argv, so that the program returns its :func:`exit_code`.

    Args:
        prog: the program's name in messages.
        interrupted: the message after Ctrl-C.
    """

    def decorate(work: Work) -> Main:
        def main(argv: Sequence[str] | None = None) -> int:
            arguments = list(sys.argv[1:] if argv is None else argv)
            return exit_code(prog, lambda: work(arguments), interrupted)

        return main

    return decorate


def exit_code(prog: str, work: Callable[[], bool | None], interrupted: str = "interrupted") -> int:
    """Run ``work`` and return the exit code of the program.

    Returns:
        0, or 1 if ``work`` returns False, 2 after a UserError, 128 + the number of a signal.
    """
    formatwarning = warnings.formatwarning
    warnings.formatwarning = partial(_warning, prog)
    try:
        with any_character_printable():
            return int(work() is False)
    except UserError as error:
        dashes = "--" if isinstance(error, ParameterError) else ""
        message = f"error: {dashes}{error_line(error)}"
        code = 2
    except BrokenPipeError:  # ``| head``
        message = "stopped: its output was closed"
        code = 128 + 13  # SIGPIPE, which Windows lacks
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else flushing at exit fails again
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        message = f"error: out of memory: {one_line(reason_of(error))[:200]}"
        code = 2
    except OSError as error:  # such as a folder that may not be written
        if error.filename is None:
            raise  # not about a file of the user
        message = f"error: {one_line(str(error))}"
        code = 2
    except KeyboardInterrupt as stop:
        message = with_options(str(stop)) or interrupted
        code = 128 + getattr(stop, "signal", signal.SIGINT)
    finally:
        warnings.formatwarning = formatwarning
    print(f"{prog}: {message}", file=sys.stderr, flush=True)
    return code


@contextmanager
def any_character_printable() -> Iterator[None]:
    """Let standard output escape characters that its encoding lacks, such as Chinese in ASCII."""
    stream = sys.stdout
    with ExitStack() as stack:
        if isinstance(stream, TextIOWrapper):  # a notebook's takes any character
            stack.callback(stream.reconfigure, errors=stream.errors)
            stream.reconfigure(errors="backslashreplace")
        yield


def _warning(prog: str, message: Warning | str, *_: object, **__: object) -> str:
    text = " ".join(str(message).split())
    return f"{prog}: warning: {one_line(text)}\n"
