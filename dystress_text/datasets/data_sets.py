"""The texts that can be prepared: what they are, where they come from, and under which terms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dystress_text.errors import DataError


@dataclass(frozen=True)
class Request:
    """What the user asked for: the program's options, and the folder of prepared data."""

    root: Path
    source: Path | None = None
    variant: str | None = None
    classes: Path | None = None
    again: bool = False

    def compare(self, name: str, source: object, found: str, expected: str) -> None:
        """Refuse a set that is not the published one, unless the user has named a variant."""
        if self.variant is None and found != expected:
            raise DataError(
                f"{name}: {str(source)!r} holds {found}, {expected} expected; if it is knowingly "
                "another set, say so with --variant NAME"
            )


@dataclass(frozen=True)
class DataSet:
    """One of the sets."""

    name: str  # as the program calls it, and of its folder below the root of prepared data
    about: str  # what it is and what it is used for
    terms: str  # under which it may be used
    repository: str | None = None  # on the hub; None for data that only the user can have
    files: tuple[str, ...] = ()  # glob patterns of the files in the repository


_SIMCSE = "princeton-nlp/datasets-for-simcse"
_LIST = (
    DataSet(
        "wiki1m",
        "one million sentences of English Wikipedia, one a line: SimCSE's training text",
        "text CC BY-SA 3.0 (Wikipedia)",
        _SIMCSE,
        ("wiki1m_for_simcse.txt",),
    ),
    DataSet(
        "senteval",
        "the test sets of the 7 STS and 7 transfer tasks, in SentEval's downstream layout",
        "each task has its own: STS-B CC BY-SA 4.0, SICK CC BY-NC-SA 3.0, MRPC Microsoft Research "
        "terms, the others for research",
        _SIMCSE,
        ("senteval.tar",),
    ),
)
CATALOG = {entry.name: entry for entry in _LIST}
