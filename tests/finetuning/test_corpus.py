"""Reading, reporting, tokenising and caching of training sentences."""

import gzip
import io
import lzma
import warnings
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import chain

import numpy as np
import pytest
import torch
from conftest import make_sentences
from hypothesis import given
from hypothesis import strategies as st
from model_cases import text_reader

from dystress_text.errors import UserError
from dystress_text.finetuning.corpus import CHUNK, load_corpus
from dystress_text.finetuning.crops import Crops
from dystress_text.finetuning.settings import TextSettings
from dystress_text.finetuning.texts import CorpusReport, TrainingText, plain_text, training_text
from dystress_text.io.text_lines import LineCounts, read_sentences


def load(file, folder, limit=None, length=9, crops=None):
    return load_corpus(plain_text(file), text_reader(length), limit, folder, crops)


def write(folder, lines):
    file = folder / "text.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_all_lines_are_counted(lines):
    data = b"\n".join(lines)
    counts = LineCounts()
    sentences = list(read_sentences(io.BytesIO(data), counts))
    skipped = counts.empty + counts.over_long + counts.invalid_utf8 + counts.nul
    assert counts.lines == len(io.BytesIO(data).readlines())
    assert counts.lines == counts.sentences + skipped
    assert counts.sentences == len(sentences)
    assert not any("\0" in each or "\n" in each or not each.strip() for each in sentences)


def test_ids_are_those_of_the_tokenizer(text_file, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("dystress_text.finetuning.corpus.CHUNK", 100)  # two chunks
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(text_file.read_bytes()))
    corpus = load(packed, tmp_path)
    lines = text_file.read_text().splitlines()
    rows = [5, 0, 199, 5]
    batch = corpus.batch(np.array(rows))
    ids = batch["token_ids"].split(batch["lengths"].tolist())
    expected = tokenizer([lines[i] for i in rows], truncation=True, max_length=9)
    assert [each.tolist() for each in ids] == expected["input_ids"]
    assert batch["longest"] == batch["lengths"].max()
    every = tokenizer(lines, truncation=True, max_length=9)["input_ids"]
    read = torch.cat([batch["token_ids"] for batch in corpus.sentences()])
    assert read.tolist() == [*chain(*every)]
    counts = np.bincount(np.concatenate([np.unique(each) for each in every]), minlength=99)
    assert corpus.document_frequencies(99).tolist() == counts.tolist()
    lengths = np.array([len(each) for each in tokenizer(lines)["input_ids"]])
    cut = np.maximum(lengths - 9, 0)
    report = corpus.report
    assert len(corpus) == report.sentences == len(lines)
    assert report.truncated == np.count_nonzero(cut)
    assert report.tokens_cut == cut.sum()
    assert report.tokens == lengths.sum()


@pytest.mark.parametrize(("truncated", "named"), [(10, False), (11, True)])
def test_the_option_is_named_where_many_texts_are_cut(truncated, named):
    report = CorpusReport(sentences=100, truncated=truncated, tokens=300, tokens_cut=100)
    assert ("33 % of all tokens (raise max_seq_length)" in report.summary()) == named


@pytest.mark.parametrize("crops", [None, Crops(0)])
def test_a_text_without_tokens_is_padding(crops, tmp_path):
    """A tokenizer that adds no special tokens and drops some characters."""
    text = plain_text(write(tmp_path, ["\ufffd \ufffd", *make_sentences(20)]))
    corpus = load_corpus(text, text_reader(9, "$A"), cache_dir=tmp_path, crops=crops)
    batch = corpus.batch(np.arange(2))
    assert batch["lengths"].min() == 1
    assert batch["token_ids"][0] == 1  # the id of [PAD]


def test_distinct_samples(tmp_path):
    corpus = load(
        write(tmp_path, ["the cat", "the dog", "The   cat", "cat the", "the dog"]), tmp_path
    )
    distinct = corpus.distinct()
    assert distinct.selected.tolist() == [0, 1, 3]
    assert corpus.report.duplicates == 2
    batch = distinct.batch(np.array([1, 2]))
    expected = corpus.batch(np.array([1, 3]))
    assert torch.equal(batch["token_ids"], expected["token_ids"])
    table = tmp_path / "rows.csv"
    table.write_text("a,b\nthe cat,the dog\nthe cat,cat the\nthe cat,the dog\nthe,cat the dog\n")
    rows = training_text(TextSettings(train_file=[str(table)], supervised=True))
    distinct = load_corpus(rows, text_reader(9), cache_dir=tmp_path).distinct()
    assert distinct.selected.tolist() == [0, 1, 3]
    anchors, positives = distinct.batch(np.arange(3))["texts"].T.tolist()
    assert (len(set(anchors)), len(set(positives))) == (2, 3)


def test_a_tokenizer_without_the_script_is_refused(tmp_path, recwarn):
    thai = [chr(0x0E01 + i) * 8 for i in range(38)]
    english = make_sentences(100, seed=3)
    load(write(tmp_path, english), tmp_path)
    assert not recwarn
    with pytest.warns(UserWarning, match="model_name_or_path"):
        load(write(tmp_path, english[:50] + thai), tmp_path)
    with pytest.raises(UserError, match=r"^model_name_or_path"):
        load(write(tmp_path, thai), tmp_path)


def test_cache_key(tmp_path, text_file, monkeypatch):
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text() + "the cat sat on the mat\n")
    made = load(text_file, tmp_path)
    assert len(made) == 200
    assert len(load(text_file, tmp_path, length=5).content) < len(made.content)
    assert len(load(text_file, tmp_path, limit=50)) == 50
    assert len(load(other, tmp_path)) == 201
    monkeypatch.setattr(TrainingText, "read", lambda *_: pytest.fail("read again"))
    again = load(text_file, tmp_path)
    assert isinstance(again.content, np.memmap)
    assert np.array_equal(made.content, again.content)
    assert made.report == again.report
    assert sorted(again.sampled_texts) == sorted(text_file.read_text().splitlines())  # up to 2,000


def text_of(lines, **more):
    """Return a text, and a list to which each line is added when it is read."""
    read = []

    def reading():
        for line in lines:
            read.append(line)
            yield line.encode()

    return TrainingText("text", "row", (), reading, **more), read


@pytest.mark.filterwarnings("ignore:model_name_or_path")  # the numbers
def test_some_sentences_are_drawn_while_the_text_is_read(tmp_path):
    """Rows of two texts: of 2,000 rows the first text, from all parts of the table alike."""
    text, _ = text_of([f"the {animal} {i}" for i in range(8_000) for animal in ("cat", "dog")])
    text = replace(text, column_names=("anchor", "positive"))
    load = partial(load_corpus, text, text_reader(9), crops=Crops(0))
    first = load(cache_dir=tmp_path / "a").sampled_texts
    numbers = np.array([int(sentence.removeprefix("the cat ")) for sentence in first])
    assert len(set(numbers)) == 2_000
    shares = np.histogram(numbers, 4, (0, 8_000))[0] / 2_000
    np.testing.assert_allclose(shares, 0.25, atol=0.05)  # five standard deviations
    assert load(cache_dir=tmp_path / "b").sampled_texts == first


def test_a_text_is_read_once(tmp_path):
    """A new text for all of it, a known one for its checksum; of others only the beginning."""
    lines = [f"the cat\rsat on {end}" for end in make_sentences(600)]
    text, read = text_of(lines, titled=True)
    beginning = lines[:CHUNK]
    corpus = load_corpus(text, text_reader(9), cache_dir=tmp_path)
    assert read == beginning + lines
    assert corpus.titles.tolist() == [4] * len(lines)  # with [CLS] and [SEP]
    assert corpus.report.sha256 == text.checksum() == checksum(lines)
    read.clear()
    again = load_corpus(text, text_reader(9), cache_dir=tmp_path)
    assert read == beginning + lines
    assert np.array_equal(again.titles, corpus.titles)
    read.clear()
    assert len(load_corpus(text, text_reader(9), 5, tmp_path)) == 5
    assert read == beginning + lines  # the checksum is that of the whole text


def checksum(lines):
    return sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def test_a_text_that_grows_while_it_is_read_is_not_taken_for_the_earlier_one(tmp_path):
    lines = make_sentences(300)
    grown = [*lines, "the cat"]
    text, _ = text_of(lines)
    longer, _ = text_of(grown)
    readings = iter([text.lines, longer.lines])
    growing = replace(text, lines=lambda: next(readings)())
    corpus = load_corpus(growing, text_reader(9), cache_dir=tmp_path)
    assert len(corpus) == 301
    assert corpus.report.sha256 == checksum(grown)
    assert len(load_corpus(text, text_reader(9), cache_dir=tmp_path)) == 300


@pytest.mark.parametrize(
    ("name", "at"), [("tokens.bin", -9), ("arrays.npz", 40), ("metadata.json", -9)]
)
def test_a_damaged_cache_is_made_again(name, at, tmp_path, text_file):
    made = load(text_file, tmp_path)
    content = made.content.copy()
    (file,) = tmp_path.glob(f"corpus/*/{name}")
    data = file.read_bytes()
    file.write_bytes(data[:at] + b"\1" + data[at + 1 :])
    with pytest.warns(UserWarning, match="damaged"):
        again = load(text_file, tmp_path)
    assert np.array_equal(again.content, content)
    assert np.array_equal(again.offsets, made.offsets)
    assert again.report == made.report
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(text_file, tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("blank.txt", b"\n \n"),
        ("most.txt", b"a sentence\n" + b"\xff\n" * 2),
        ("torn.xz", lzma.compress(b"x\n")[:-9]),
        ("none.txt", None),
    ],
)
def test_unusable_files(tmp_path, name, content):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=rf"^train_file: .*{name}") as caught:
        load(file, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache" / "corpus").glob("*/")) == []
