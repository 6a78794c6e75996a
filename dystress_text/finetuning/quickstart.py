"""Collect the quickstart's corpus: about 15,000 English sentences from Python's own documentation.

Its sources are the docstrings of the standard library, which is parsed and not imported, and the
language reference in ``pydoc_data``, so it depends on the version of Python.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from dystress_text.io.atomic import write_text
from dystress_text.io.paths import cache_error, cache_root

FORMAT = 1  # version of the cached file; raise it when the definition of a sentence changes

_EXCLUDED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3"}
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)'\"`][.!?])\s+(?=[A-Z])")
_MARKUP = re.compile(r"[`*|]+")
_WORD = re.compile(r"[A-Za-z][a-z']*[,.;:!?]*")


def documentation_sentences() -> list[str]:
    """Return distinct English sentences of 4 to 60 words, ordered by file name."""
    library = Path(sysconfig.get_path("stdlib"))
    sentences: dict[str, None] = {}
    for file in sorted(library.rglob("*.py")):
        if not _EXCLUDED.isdisjoint(file.relative_to(library).parts):
            continue
        for text in _documentation_of(file):
            for paragraph in re.split(r"\n\s*\n", text):
                sentences |= dict.fromkeys(split_sentences(paragraph))
    return list(sentences)


def split_sentences(paragraph: str) -> list[str]:
    """Return the English sentences of a paragraph, without markup and repeated white space."""
    text = " ".join(_MARKUP.sub("", paragraph).split())
    return [sentence for sentence in _SENTENCE_END.split(text) if _is_english(sentence)]


def write_documentation_corpus() -> Path:
    """Return the cached corpus, a sentence on each line; write it if it is missing."""
    version = sysconfig.get_config_var("py_version")
    path = cache_root() / "quickstart" / f"python-{version}-format-{FORMAT}.txt"
    try:
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, "".join(f"{sentence}\n" for sentence in documentation_sentences()))
    except OSError as error:
        raise cache_error(path.parent, error) from error
    return path


def _documentation_of(file: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the parsed files
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):  # the library has samples of broken source
        return
    if file.name == "topics.py":  # pydoc_data: a dictionary of texts
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def _is_english(sentence: str) -> bool:
    words = sentence.split()
    shaped = 4 <= len(words) <= 60 and sentence[0].isupper() and sentence[-1] in ".!?"
    return shaped and sum(bool(_WORD.fullmatch(word)) for word in words) >= 0.7 * len(words)
