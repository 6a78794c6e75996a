"""Reading, reporting, tokenising and caching of training sentences."""

import gzip
import io
import lzma
import warnings

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, make_sentences
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.config.settings import TextSettings
from dystress_text.data.corpus import load_corpus
from dystress_text.data.crops import Crops
from dystress_text.data.texts import TrainingText, plain_text, training_text
from dystress_text.errors import UserError
from dystress_text.io.text_lines import (
    CorpusReport,
    read_sentences,
)


def read(data: bytes, limit: int | None = None) -> tuple[list[str], CorpusReport]:
    report = CorpusReport()
    return list(read_sentences(io.BytesIO(data), report, limit)), report


def load(file, tokenizer, folder, limit=None, length=9):
    return load_corpus(plain_text(file), tokenizer, length, limit, cache_dir=folder)


def rows_of(file, columns=None):
    return training_text(
        TextSettings(train_file=[str(file)], supervised=True, text_columns=columns)
    )


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_all_lines_are_counted(lines):
    data = b"\n".join(lines)
    sentences, report = read(data)
    assert report.lines == data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
    assert (
        report.lines
        == report.sentences + report.empty + report.over_long + report.invalid_utf8 + report.nul
    )
    assert all(s.strip() and "\0" not in s and "\n" not in s for s in sentences)
    assert report.duplicates == len(sentences) - len(set(sentences))


def test_ids_are_those_of_the_tokenizer(text_file, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("dystress_text.data.corpus.CHUNK", 5000)  # several chunks
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(text_file.read_bytes()))
    corpus = load(packed, tokenizer, tmp_path)
    lines = text_file.read_text().splitlines()
    assert len(corpus) == len(lines)
    rows = np.array([5, 0, 199, 5])
    batch = corpus.batch(rows)
    expected = tokenizer([lines[i] for i in rows], truncation=True, max_length=9)["input_ids"]
    assert [ids.tolist() for ids in batch["token_ids"].split(batch["lengths"].tolist())] == expected
    assert batch["longest"] == batch["lengths"].max()
    cut = [len(ids) > 9 for ids in tokenizer(lines)["input_ids"]]
    assert corpus.report.truncated == sum(cut)


@pytest.mark.parametrize("crops", [None, Crops(0)])
def test_a_text_without_tokens_is_padding(crops, tmp_path):
    """A tokenizer that adds none and drops some characters; crops of the third line have none at
    times.
    """
    tokenizer, file = build_tokenizer("$A"), tmp_path / "text.txt"
    lines = [
        "\ufffd \ufffd",
        "a cat",
        " ".join(["\ufffd"] * 4 + ["a"] + ["\ufffd"] * 6),
        *make_sentences(20),
    ]
    file.write_text("".join(f"{line}\n" for line in lines))
    corpus = load_corpus(plain_text(file), tokenizer, 9, cache_dir=tmp_path, crops=crops)
    seen = set()
    for step in range(20):
        batch = corpus.batch(np.arange(3), step)
        assert batch["lengths"].min() == 1
        rows = batch["token_ids"].split(batch["lengths"].tolist())
        assert rows[0].tolist() == [tokenizer.pad_token_id]
        seen.add(tuple(rows[2].tolist()))
    assert seen == ({(4,)} if crops is None else {(4,), (tokenizer.pad_token_id,)})


def test_distinct_samples(tokenizer, tmp_path):
    lines = ["the cat", "the dog", "The   cat", "cat the", "the dog"] + [
        "the cat sat on the mat and ran"
    ] * 2
    file, table = tmp_path / "text.txt", tmp_path / "rows.csv"
    file.write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match=r"14.29 % of the texts equal to others"):  # 1 of 7
        corpus = load(file, tokenizer, tmp_path)
    assert corpus.distinct().chosen.tolist() == [0, 1, 3, 5]
    rows = np.array([2, 3])
    batch, expected = corpus.distinct().batch(rows), corpus.batch(np.array([3, 5]))
    assert all(torch.equal(batch[name], expected[name]) for name in ("token_ids", "lengths"))
    table.write_text("a,b\nthe cat,the dog\nthe cat,cat the\nthe cat,the dog\nthe,cat the dog\n")
    of_rows = load_corpus(rows_of(table), tokenizer, 9, cache_dir=tmp_path)
    assert of_rows.distinct().chosen.tolist() == [0, 1, 3]


THAI = ["".join(chr(0x0E01 + i * k % 40) for k in range(8)) for i in range(1, 39)]
ENGLISH = make_sentences(100, seed=3)


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        (THAI, "refused"),
        (ENGLISH + THAI, "warned"),
        (ENGLISH, None),
        ([case for line in ENGLISH for case in (line, line.upper())], "refused"),
    ],
)
def test_losses_of_the_tokenizer_are_measured(tmp_path, tokenizer, lines, outcome, recwarn):
    file = tmp_path / "text.txt"
    file.write_text("\n".join(lines) + "\n")
    warnings.simplefilter("always")
    for _ in range(2):  # read, and from the cache
        recwarn.clear()
        if outcome == "refused":
            with pytest.raises(UserError, match=r"^model_name_or_path"):
                load(file, tokenizer, tmp_path)
            continue
        report = load(file, tokenizer, tmp_path).report
        ids = [row[1:-1] for row in tokenizer(lines, truncation=True, max_length=9)["input_ids"]]
        tokens = [token for row in ids for token in row]
        unknown = tokens.count(tokenizer.unk_token_id) / len(tokens)
        assert report.unknown / report.tokens == pytest.approx(unknown)
        assert bool(recwarn) == (outcome == "warned")


def test_cache_key(tmp_path, text_file, tokenizer, monkeypatch):
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text() + "the cat sat on the mat\n")
    variants = [(text_file, None, 9), (text_file, None, 10), (text_file, 50, 9), (other, None, 9)]
    made = [load(file, tokenizer, tmp_path, limit, length) for file, limit, length in variants]
    assert [len(corpus) for corpus in made] == [200, 200, 50, 201]
    monkeypatch.setattr(TrainingText, "sentences", lambda *_: pytest.fail("read again"))
    again = load(text_file, tokenizer, tmp_path)
    assert isinstance(again.content, np.memmap)
    assert np.array_equal(made[0].content, again.content)
    assert made[0].report == again.report
    assert sorted(again.some) == sorted(text_file.read_text().splitlines())  # up to 2,000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("blank.txt", b"\n \n"),
        ("binary.txt", b"\xff\xfe\0"),
        ("most.txt", b"a sentence\n" + b"\xff\n" * 2),
        ("fake.gz", b"\x1f\x8b\x08 no gzip"),
        ("torn.xz", lzma.compress(b"x\n")[:-9]),
        ("packed.txt", lzma.compress(b"x\n")),
        ("none.txt", None),
    ],
)
def test_unusable_files(tmp_path, tokenizer, name, content):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=rf"^train_file: .*{name}") as caught:
        load(file, tokenizer, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache" / "corpus").glob("*/")) == []


@pytest.mark.parametrize("size", [-1, 1, 0])
@pytest.mark.parametrize("name", ["tokens.bin", "rest.npz"])
def test_a_damaged_cache_is_rebuilt(tmp_path, text_file, tokenizer, name, size):
    whole = load(text_file, tokenizer, tmp_path).batch(np.arange(200))
    (file,) = (tmp_path / "corpus").glob(f"*/{name}")
    content = file.read_bytes()
    flipped = (
        content[:150] + bytes([content[150] ^ 1]) + content[151:]
    )  # a bit, a short file, an empty one
    file.write_bytes(flipped if size < 0 else content[: len(content) // 2] if size else b"")
    with pytest.warns(UserWarning, match="the corpus cache .* is damaged .* and made again"):
        again = load(text_file, tokenizer, tmp_path)
    assert all(
        torch.equal(again.batch(np.arange(200))[name], whole[name])
        for name in ("token_ids", "lengths")
    )
