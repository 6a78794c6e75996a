"""Compressed texts and blank lines."""

import bz2
import gzip
import io
import lzma

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dystress_text.finetuning.arguments import parse
from dystress_text.finetuning.texts import training_text
from dystress_text.io.text_lines import LineCounts, read_sentences

UNSEEN = st.characters(categories=["Zs", "Zl", "Zp", "Cf", "Cc"], exclude_characters="\n\0")
SEEN = st.characters(categories=["L", "N", "P", "S"])


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a", bytes), ("a.TXT.GZ", gzip.compress), ("a.xz", lzma.compress), ("a.bz2", bz2.compress)],
)
def test_compressed_texts(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(b"a cat\nBZh is no packing\n"))
    text = training_text(parse(["--train_file", str(tmp_path / name)]).text)
    assert list(text.sentences()) == ["a cat", "BZh is no packing"]


@given(
    st.lists(st.tuples(st.text(UNSEEN), st.text(SEEN, min_size=1), st.text(UNSEEN))),
    st.lists(st.text(UNSEEN), min_size=1),
)
@example(
    [("", "one", ""), ("", "two", "")],
    ["\u00a0", "\u3000\u200b\ufeff", "\u2060\u200d"],
)
def test_lines_without_visible_characters_are_blank(lines, blanks):
    texts = ["".join(parts) for parts in lines]
    data = "".join("\n".join([text, *blanks, ""]) for text in texts).removeprefix("\ufeff").encode()
    report = LineCounts()
    assert len(list(read_sentences(io.BytesIO(data), report))) == len(texts)
    assert report.empty == len(texts) * len(blanks)
