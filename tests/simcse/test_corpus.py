"""Reading, reporting, tokenising and caching of training sentences."""

import bz2
import codecs
import errno
import gzip
import io
import lzma
import re
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dystress_text.errors import UserError
from dystress_text.files.text_lines import MAX_LINE_BYTES, CorpusReport, read_sentences
from dystress_text.simcse.corpus import TextFile, load_corpus

KINDS = {"empty", "over_long", "invalid_utf8", "nul", "bom", "crlf", "duplicates", "truncated"}


def read(data: bytes, limit: int | None = None) -> tuple[list[str], CorpusReport]:
    report = CorpusReport()
    return list(read_sentences(io.BytesIO(data), report, limit)), report


def test_every_finding_is_counted_and_located():
    long = b"x" * (MAX_LINE_BYTES + 10)
    data = b"one\n\n  \ntwo\r\n" + long + b"\nna\xc3\xafve\nbad \xff\nnul \0 here\none\nlast without end"
    sentences, report = read(data)
    assert sentences == ["one", "two", "na\u00efve", "one", "last without end"]
    assert (report.lines, report.sentences, report.empty, report.over_long) == (10, 5, 2, 1)
    assert (report.invalid_utf8, report.nul, report.crlf, report.duplicates) == (1, 1, 1, 1)
    first = {"empty": 2, "crlf": 4, "over_long": 5, "invalid_utf8": 7, "nul": 8, "duplicates": 9}
    assert report.first_line == first
    for part in ("5 sentences in 10 lines", "2 empty (left out) from line 2", "1 duplicates (kept) from line 9"):
        assert part in report.summary()


def test_the_first_duplicate_is_the_first_repetition():
    _, report = read(b"a\nb\n\nc\nb\na\na\n")  # b is repeated first, though a is the first to have repetitions
    assert (report.duplicates, report.first_line["duplicates"]) == (3, 5)


def test_a_byte_order_mark_is_removed_from_the_start_and_reported():
    sentences, report = read(codecs.BOM_UTF8 + b"one\r\ntwo\n" + codecs.BOM_UTF8 + b"three\n")
    assert sentences == ["one", "two", "\ufeffthree"]
    assert (report.bom, report.first_line["bom"]) == (1, 1)
    assert "1 byte order mark (removed) from line 1" in report.summary()
    sentences, report = read(codecs.BOM_UTF8)
    assert (sentences, report.bom, report.empty) == ([], 1, 1)


def test_lines_end_at_line_feeds_alone():
    text = "a\u2028b\x0bc\x85d\x1ce\rf"  # str.splitlines would cut at each of these
    assert read(text.encode())[0] == [text]


@pytest.mark.parametrize("length", [MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 2 * MAX_LINE_BYTES, 3 * MAX_LINE_BYTES + 1])
def test_the_line_after_an_over_long_one_is_read_whole(length):
    sentences, report = read(b"x" * length + b"\nnext line\n")
    assert sentences[-1] == "next line"
    assert report.over_long == (length > MAX_LINE_BYTES)
    assert report.lines == 2


def test_limit_counts_sentences_not_lines():
    sentences, report = read(b"a\n\nb\na\nd\n", limit=3)
    assert sentences == ["a", "b", "a"]
    assert (report.lines, report.duplicates) == (4, 1)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=8))
def test_any_bytes_are_accounted_for(lines):
    data = b"\n".join(lines)
    sentences, report = read(data)
    assert report.lines == data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
    assert report.lines == report.sentences + report.empty + report.over_long + report.invalid_utf8 + report.nul
    assert all(s.strip() and "\0" not in s and "\n" not in s for s in sentences)
    assert set(report.first_line) == {kind for kind, count in asdict(report).items() if count} & KINDS
    assert report.duplicates == len(sentences) - len(set(sentences))


def test_ids_are_those_of_the_tokenizer(text_file, tokenizer):
    corpus = load_corpus(TextFile(text_file), tokenizer, max_seq_length=9, progress=False)
    lines = text_file.read_text().splitlines()
    assert len(corpus) == len(lines)
    rows = np.array([5, 0, 199, 5])
    batch = corpus.batch(rows)
    expected = tokenizer([lines[i] for i in rows], truncation=True, max_length=9, padding=True, return_tensors="pt")
    assert torch.equal(batch["token_ids"], expected["input_ids"][expected["attention_mask"].bool()])
    assert torch.equal(batch["attention_mask"], expected["attention_mask"])
    untruncated = tokenizer(lines)["input_ids"]
    assert corpus.report.truncated == sum(len(ids) > 9 for ids in untruncated) > 0


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_the_first_truncated_sentence_is_located_by_its_line(tmp_path, tokenizer, monkeypatch, chunk):
    monkeypatch.setattr("dystress_text.simcse.corpus.CHUNK", chunk)
    file = tmp_path / "text.txt"
    file.write_text("the cat\n\n\nthe dog\n" + "the cat sat on the mat\n" * 2)
    report = load_corpus(TextFile(file), tokenizer, 5, cache_dir=tmp_path, progress=False).report
    assert (report.truncated, report.first_line["truncated"]) == (2, 5)


def test_a_batch_is_padded_to_its_own_longest(text_file, tokenizer):
    corpus = load_corpus(TextFile(text_file), tokenizer, max_seq_length=32, progress=False)
    lengths = np.diff(corpus.offsets)
    shortest = np.argsort(lengths)[:4]
    assert corpus.batch(shortest)["attention_mask"].shape[1] == lengths[shortest].max()


def test_second_load_comes_from_the_cache(tmp_path, text_file, tokenizer, monkeypatch):
    first = load_corpus(TextFile(text_file), tokenizer, 9, cache_dir=tmp_path, progress=False)
    monkeypatch.setattr("dystress_text.simcse.corpus._tokenize_text", lambda *_: pytest.fail("tokenised again"))
    second = load_corpus(TextFile(text_file), tokenizer, 9, cache_dir=tmp_path, progress=False)
    assert isinstance(second.tokens, np.memmap)
    assert np.array_equal(first.tokens, second.tokens)
    assert first.report == second.report


def test_content_length_and_limit_make_another_cache(tmp_path, text_file, tokenizer):
    def load(file, length, limit=None):
        return load_corpus(TextFile(file), tokenizer, length, limit, cache_dir=tmp_path, progress=False)

    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text() + "the cat sat on the mat\n")
    sizes = [len(load(*a)) for a in [(text_file, 9), (text_file, 10), (text_file, 9, 50), (other, 9)]]
    assert sizes == [200, 200, 50, 201]
    assert len(list((tmp_path / "corpus").glob("*/"))) == 4


@pytest.mark.parametrize(("suffix", "opener"), [(".gz", gzip.open), (".xz", lzma.open), (".bz2", bz2.open)])
def test_compressed_files(tmp_path, text_file, tokenizer, suffix, opener):
    file = tmp_path / f"text{suffix}"
    with opener(file, "wb") as stream:
        stream.write(text_file.read_bytes())
    assert len(load_corpus(TextFile(file), tokenizer, 9, progress=False)) == 200


@pytest.mark.parametrize(
    ("name", "content"),
    [("empty.txt", b""), ("blank.txt", b"\n \n"), ("binary.txt", b"\xff\xfe\0"), ("fake.gz", b"no gzip"),
     ("torn.xz", lzma.compress(b"x\n")[:-9])],
)  # fmt: skip
def test_unusable_files_are_one_line_and_leave_no_cache(tmp_path, tokenizer, name, content):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError, match="--train_file") as caught:
        load_corpus(TextFile(file), tokenizer, 9, cache_dir=tmp_path / "cache", progress=False)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache" / "corpus").glob("*/")) == []


def test_a_cache_that_cannot_be_written_names_the_way_out(tmp_path, text_file, tokenizer):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="DYSTRESS_CACHE"):
        load_corpus(TextFile(text_file), tokenizer, 9, cache_dir=tmp_path / "file", progress=False)


def test_a_file_that_is_none_or_cannot_be_read_is_one_line_with_its_name(tmp_path, text_file, tokenizer, monkeypatch):
    def refused(path):
        with pytest.raises(UserError, match=rf"^--train_file: .*{re.escape(path.name)}.*$") as caught:
            load_corpus(TextFile(path), tokenizer, 9, cache_dir=tmp_path, progress=False)
        return str(caught.value)

    assert "no file" in refused(tmp_path / "none.txt")
    assert "no file" in refused(tmp_path)  # a folder
    assert "too long" in refused(tmp_path / ("x" * 300))
    for error in (PermissionError(errno.EACCES, "Permission denied"), OSError(errno.EIO, "Input/output error")):
        monkeypatch.setattr(Path, "open", Mock(side_effect=error))  # as root, one may read every file
        assert error.strerror in refused(text_file)


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.npy", "report.json"])
@pytest.mark.parametrize("harm", ["torn", "changed", "removed"])
def test_a_damaged_cache_is_made_anew(tmp_path, text_file, tokenizer, name, harm):
    def load():
        return load_corpus(TextFile(text_file), tokenizer, 9, cache_dir=tmp_path, progress=False)

    whole = load().batch(np.arange(200))
    (file,) = (tmp_path / "corpus").glob(f"*/{name}")
    content = file.read_bytes()
    if harm == "removed":
        file.unlink()
    elif harm == "torn":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.write_bytes(content[:150] + bytes([content[150] ^ 1]) + content[151:])
    with pytest.warns(UserWarning, match="the corpus cache .* is damaged .* and made again"):
        again = load()
    assert file.read_bytes() == content
    assert all(torch.equal(again.batch(np.arange(200))[key], tensor) for key, tensor in whole.items())
