"""Reads what a search starts from: the sentences of a file, and a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from dystress_text.errors import UserError
from dystress_text.files.text_lines import UNPACK_ERRORS, CorpusReport, open_text, read_sentences
from dystress_text.search.sentence_vectors import Encoder


def read_lines(file: str, option: str = "--file") -> Iterator[str]:
    """The sentences of a text file, one a line; at its end, a report goes to standard error.

    Args:
        file: its name; - is standard input.
        option: the program's option for it, for error messages.

    Returns:
        A generator. Its first sentence has been read already, so an empty file is refused at once.

    Raises:
        UserError: the file cannot be read, at once or later, or has no sentence.
    """
    lines = _lines(file, option)
    first = next(lines, None)
    if first is None:
        raise UserError(f"{option}: no usable sentence in {file!r}")
    return chain([first], lines)


def _lines(file: str, option: str) -> Iterator[str]:
    report = CorpusReport()
    try:
        with sys.stdin.buffer if file == "-" else open_text(Path(file)) as stream:
            yield from read_sentences(stream, report)
    except (OSError, *UNPACK_ERRORS) as error:
        raise UserError(f"{option}: cannot read {file!r}: {getattr(error, 'strerror', None) or error}") from error
    print(f"{file}: {report.summary()}", file=sys.stderr)


def load_model(name_or_path: str, option: str = "--model") -> Encoder:
    """A sentence-transformers model from a folder, the cache or the hub.

    Args:
        name_or_path: of the model.
        option: the program's option for it, for error messages.

    Raises:
        UserError: it cannot be loaded.
    """
    from dystress_text.encoders.pretrained import load_sentence_transformer  # slow to import

    return load_sentence_transformer(name_or_path, option)
