"""The reference: every public name is on its page, with an example in its docstring that runs as
printed.
"""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import torch
from conftest import reset_accelerator

import dystress_text
from dystress_text.losses.registry import PARTS

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "api.md").read_text()
ENTRIES = re.findall(
    r"^::: ([\w.]+)\n    options:\n      members: \[([\w, \n]+)\]$", PAGE, re.MULTILINE
)
ON_PAGE = {name: module for module, names in ENTRIES for name in re.findall(r"\w+", names)}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NO_EXAMPLE = {"Audit"}  # a function returns it; its fields are documented


def examples_of(name):
    of_page = getattr(importlib.import_module(ON_PAGE[name]), name)
    text = of_page.__doc__ or ""
    if isinstance(of_page, type) and text == getattr(of_page.__base__, "__doc__", None):
        text = ""  # inherited
    return doctest.DocTestParser().get_examples(text)


def test_the_page_lists_the_public_names():
    assert PAGE.count("\n::: ") == len(ENTRIES)
    assert set(dystress_text.__all__) == set(ON_PAGE)
    for name in dystress_text.__all__:
        assert getattr(importlib.import_module(ON_PAGE[name]), name) is getattr(dystress_text, name)


def test_entries_have_examples():
    examples = {name: examples_of(name) for name in ON_PAGE}
    assert {name for name in ON_PAGE if not examples[name]} == NO_EXAMPLE
    for of_name in examples.values():
        assert all(doctest.SKIP not in each.options for each in of_name)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """The names an example may use: torch, Path and those of a star import."""
    monkeypatch.chdir(tmp_path)
    known = dict(PARTS)
    torch.manual_seed(0)
    usable = {"__name__": "example", "torch": torch, "Path": Path}
    exec("from dystress_text import *", usable)
    yield usable
    PARTS.clear()
    PARTS.update(known)
    reset_accelerator()


@pytest.mark.parametrize("name", [name for name in ON_PAGE if name not in NO_EXAMPLE])
def test_examples_run(name, names):
    test = doctest.DocTest(examples_of(name), names, name, None, 0, None)
    printed = []
    failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=printed.append).failed
    assert failed == 0, "".join(printed)
