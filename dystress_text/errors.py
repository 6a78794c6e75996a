"""Errors that programs show as one line without a traceback."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

# options of version 0.2 and of other programs, and their names here
OTHER_NAMES = {
    "batch_size": "train_batch_size",
    "beside": "hybrid",
    "epochs": "num_train_epochs",
    "eval_file": "pairs",
    "eval_retrieval": "retrieval",
    "fp16": "mixed_precision",
    "lr": "learning_rate",
    "max_length": "max_seq_length",
    "model": "model_name_or_path",
    "output": "output_dir",
    "temperature": "temp",
}


class UserError(Exception):
    """An error that the user can fix; the message is one line.

    It writes parameters in backticks, which a program shows as options with dashes.

    Examples:
        >>> try:
        ...     train("own-txt")
        ... except UserError as error:
        ...     print(error)
        preset: unknown preset 'own-txt' (did you mean own-text?); see --list_presets
    """


class ParameterError(UserError, ValueError):
    """An invalid parameter, or one that conflicts with others.

    The message starts with the parameter's name, which a program shows as an option too.
    """

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter


@contextmanager
def naming(parameter: str) -> Iterator[None]:
    """Turn a UserError inside this context into a ParameterError that names ``parameter``."""
    try:
        yield
    except ParameterError:
        raise
    except UserError as error:
        raise ParameterError(parameter, str(error)) from error


class TrainingError(UserError):
    """A run that cannot continue, such as after a loss that is not finite."""


class DataError(UserError):
    """A missing or damaged file of a data set."""


def plain(value: Any) -> Any:
    """Convert a scalar of NumPy or torch to a Python number; return other values unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def lies_in(value: object, interval: str) -> bool:
    """Return whether a value is a number in an interval such as ``[0, 1)``; NaN never is."""
    if not isinstance(value, int | float):  # argparse makes a list of ``--option=--``
        return False
    low, high = map(float, interval[1:-1].split(","))
    above = low <= value if interval[0] == "[" else low < value
    return above and (value <= high if interval[-1] == "]" else value < high)


def reason_of(error: BaseException) -> str:
    """Return an error's message as one line, or its type if there is none.

    Backticks of other libraries become apostrophes, as they do not mark parameters of this package.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, UserError) else text.replace("`", "'")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, in Python, NumPy or torch on any device."""
    torch_failed = isinstance(error, RuntimeError) and re.search(
        "DefaultCPUAllocator|out of memory", str(error)
    )
    return isinstance(error, MemoryError) or bool(torch_failed)


def meant(word: str, known: Iterable[str]) -> str:
    """Return a suggestion such as ``(did you mean own-text?)`` for a misspelled name, else "".

    Only close spellings count: ``do_train`` does not suggest ``mlp_only_train``.
    """
    by_letters = {_letters(name): name for name in known}
    other = _letters(OTHER_NAMES.get(word.lstrip("-").replace("-", "_").lower(), ""))
    if other in by_letters:
        return f" (here it is {by_letters[other]})"
    near = difflib.get_close_matches(_letters(word), by_letters, 1, 0.8)
    return f" (did you mean {by_letters[near[0]]}?)" if near else ""


def _letters(name: str) -> str:
    """Return a name without underscores, dashes and capitals."""
    return re.sub(r"[\W_]", "", name).lower()


class Interrupted(KeyboardInterrupt):
    """Raised when a signal stopped a run after its checkpoint was saved.

    It is not an ``Exception``, so ``except Exception`` around each of many runs does not catch it.
    """

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal
