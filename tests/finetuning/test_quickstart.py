"""The corpus of the quickstart; what a quickstart leaves is checked by tests/test_wheel.py."""

from dystress_text.finetuning import quickstart
from dystress_text.finetuning.quickstart import split_sentences, write_documentation_corpus


def test_paragraphs_become_sentences():
    paragraph = (
        "Return the *first* item.  It may be\n    empty if nothing is there (see foo()).\n"
        "Too short. x = [1, 2, 3] + y ** 2 == z. Raises `Error` if so!"
    )
    assert split_sentences(paragraph) == [
        "Return the first item.",
        "It may be empty if nothing is there (see foo()).",
        "Raises Error if so!",
    ]


def test_the_corpus_is_cached_by_its_format(tmp_path, monkeypatch):
    monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path))
    monkeypatch.setattr(quickstart, "documentation_sentences", lambda: ["One.", "Two."])
    file = write_documentation_corpus()
    monkeypatch.setattr(quickstart, "documentation_sentences", lambda: ["Three."])
    assert write_documentation_corpus() == file
    assert file.read_text() == "One.\nTwo.\n"
    monkeypatch.setattr(quickstart, "FORMAT", quickstart.FORMAT + 1)
    assert write_documentation_corpus().read_text() == "Three.\n"
