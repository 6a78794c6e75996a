"""The text data sets that can be prepared: their sources and terms of use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dystress_text.errors import DataError


@dataclass(frozen=True)
class Request:
    """The options of the program, and the root folder of prepared data."""

    root: Path
    source: Path | None = None
    variant: str | None = None
    classes: Path | None = None
    again: bool = False

    def compare(self, name: str, source: object, found: str, expected: str) -> None:
        """Refuse data that are not the published data set, unless the user names a variant."""
        if self.variant is None and found != expected:
            reason = f"expected {expected}, {str(source)!r} holds {found}"
            raise DataError(f"{name}: {reason}; `variant` NAME accepts it as a variant")


@dataclass(frozen=True)
class DataSet:
    """A data set that can be prepared."""

    name: str  # on the command line, and of its folder
    description: str  # what it is and what it is used for
    terms: str  # licence or terms of use
    repository: str | None = None  # on the hub; None for data that the user has to provide
    files: tuple[str, ...] = ()  # glob patterns of its files in the repository


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
