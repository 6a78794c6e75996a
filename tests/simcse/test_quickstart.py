"""The embedded encoder, and the corpus of the quickstart; what a quickstart leaves is checked by quickstart_run.py."""

import errno
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from dystress_text.errors import UserError
from dystress_text.files.places import EMBEDDED
from dystress_text.simcse import quickstart
from dystress_text.simcse.quickstart import split_sentences, write_documentation_corpus


def test_paragraphs_become_sentences():
    paragraph = "Return the *first* item.  It may be\n    empty if nothing is there (see foo()).\nRaises `Error` if so!"
    expected = [
        "Return the first item.",
        "It may be empty if nothing is there (see foo()).",
        "Raises Error if so!",
    ]
    assert split_sentences(paragraph) == expected
    assert split_sentences("lower case start is no sentence. Too short. x = [1, 2, 3] + y ** 2 == z.") == []


def test_the_corpus_is_cached_by_its_format(tmp_path, monkeypatch):
    monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path))
    monkeypatch.setattr(quickstart, "documentation_sentences", lambda: ["One.", "Two."])
    file = write_documentation_corpus()
    monkeypatch.setattr(quickstart, "documentation_sentences", lambda: ["Three."])
    assert write_documentation_corpus() == file
    assert file.read_text() == "One.\nTwo.\n"
    monkeypatch.setattr(quickstart, "FORMAT", quickstart.FORMAT + 1)
    assert write_documentation_corpus().read_text() == "Three.\n"


def test_a_cache_that_cannot_be_made_or_written_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(quickstart, "documentation_sentences", lambda: ["One."])
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder" / "quickstart").mkdir(parents=True)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(Path, "open", Mock(side_effect=full))
    for cache in (tmp_path / "file", tmp_path / "folder"):
        monkeypatch.setenv("DYSTRESS_CACHE", str(cache))
        with pytest.raises(UserError, match=rf"^.*{re.escape(str(cache))}.* DYSTRESS_CACHE .*$"):
            write_documentation_corpus()


def test_the_embedded_encoder_is_the_shared_one(shared):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        ours, theirs = EMBEDDED / "bert-mini-wiki" / name, shared / "models" / "bert-mini-wiki" / name
        assert ours.read_bytes() == theirs.read_bytes()
