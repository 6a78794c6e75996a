"""Training text that nobody thought of: files, tables and the cache. Read, or one line of ours."""

import bz2
import gzip
import json
import lzma
import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import build_tokenizer, make_sentences
from fuzz_cases import ODD_BYTES, accepted, deep, inputs, places_apart, snapshot, spoiled, spoiled_lines, spoiled_value
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.errors import UserError
from dystress_text.files.text_lines import MAX_LINE_BYTES
from dystress_text.files.whole import sha256_of
from dystress_text.simcse.corpus import TextFile, load_corpus
from dystress_text.simcse.training_text import column_of_table
from dystress_text.train import main

SENTENCES = make_sentences(30)
TEXT = "".join(f"{sentence}\n" for sentence in SENTENCES).encode()
TOKENIZER = build_tokenizer()
LINES = st.one_of(
    st.sampled_from(ODD_BYTES), st.binary(max_size=20), st.text(max_size=20).map(str.encode), st.just(b"a cat")
)
CONTENTS = st.one_of(
    spoiled(TEXT),
    st.binary(max_size=300),
    st.tuples(st.lists(LINES, max_size=12), st.sampled_from((b"\n", b"\r\n", b"\r", b"\n\r", b""))).map(
        lambda drawn: drawn[1].join(drawn[0])
    ),
    st.text(max_size=100).map(lambda text: text.encode("utf-16")),
)


def check(corpus, size):
    """Every line is a sentence or left out for one reason, and every sentence can be asked for."""
    report = corpus.report
    left_out = report.empty + report.over_long + report.invalid_utf8 + report.nul
    assert report.lines == report.sentences + left_out
    assert len(corpus) == report.sentences > 0
    assert report.summary()
    batch = corpus.batch(np.arange(len(corpus)))
    assert 2 <= batch["attention_mask"].shape[1] <= size
    assert batch["token_ids"].max() < len(TOKENIZER)


@inputs(400)
@given(CONTENTS, st.sampled_from((3, 16)))
def test_files(tmp_path_factory, content, size):
    folder = tmp_path_factory.getbasetemp() / "corpus"
    folder.mkdir(exist_ok=True)
    file = folder / "text.txt"
    file.write_bytes(content)
    corpus = accepted(load_corpus, TextFile(file), TOKENIZER, size, cache_dir=folder / "cache", progress=False)
    if corpus is not None:
        check(corpus, size)
    assert {path.name for path in folder.iterdir()} <= {"text.txt", "cache"}
    shutil.rmtree(folder)


@inputs(250)
@given(st.data(), st.sampled_from(((".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress))))
def test_packed_files(tmp_path_factory, data, kind):
    suffix, pack = kind
    file = tmp_path_factory.getbasetemp() / f"text{suffix}"
    file.write_bytes(data.draw(st.one_of(spoiled(pack(TEXT)), CONTENTS, CONTENTS.map(pack))))
    cache = tmp_path_factory.getbasetemp() / "packed-cache"
    corpus = accepted(load_corpus, TextFile(file), TOKENIZER, 16, cache_dir=cache, progress=False)
    if corpus is not None:
        check(corpus, 16)
    shutil.rmtree(cache, ignore_errors=True)


def test_a_line_without_end_stays_out_of_memory(tmp_path):
    """100 MB that are a few kilobytes on disk, as a packed file may be."""
    file = tmp_path / "text.gz"
    with gzip.open(file, "wb", 1) as packed:
        packed.write(b"a cat\na dog\n")
        for _ in range(100):
            packed.write(b"x" * 10**6)
        packed.write(b"\na fish\n")
    tracemalloc.start()
    corpus = load_corpus(TextFile(file), TOKENIZER, 16, cache_dir=tmp_path / "cache", progress=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(corpus), corpus.report.over_long) == (3, 1)
    assert peak < 20 * 2**20
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) < MAX_LINE_BYTES


@inputs(250)
@given(st.data())
def test_a_spoiled_cache(tmp_path_factory, data):
    """Made anew, or read as it was written."""
    folder = tmp_path_factory.getbasetemp() / "spoiled"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    file = folder / "text.txt"
    file.write_bytes(TEXT)
    whole = load_corpus(TextFile(file), TOKENIZER, 16, cache_dir=folder / "cache", progress=False)
    tokens, report = whole.tokens.tolist(), whole.report
    target = data.draw(st.sampled_from(sorted(p for p in (folder / "cache").rglob("*") if p.is_file())))
    if target.suffix == ".json" and data.draw(st.booleans()):
        target.write_text(json.dumps(data.draw(spoiled_value(json.loads(target.read_text())))))
    else:
        target.write_bytes(data.draw(spoiled(target.read_bytes())))
    corpus = accepted(load_corpus, TextFile(file), TOKENIZER, 16, cache_dir=folder / "cache", progress=False)
    assert corpus.tokens.tolist() == tokens
    if target.name != "report.json":  # whose numbers may be others; what they are for still works
        assert corpus.report == report


@pytest.mark.parametrize("name", ["report.json", "offsets.npy"])
@pytest.mark.parametrize(
    "content", [deep().encode(), b"", b"\0", b"{}", b"[]", b'{"dtype": "O"}', b'{"dtype": "V1000000"}']
)
def test_a_cache_of_another_form(name, content, tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT)
    load_corpus(TextFile(file), TOKENIZER, 16, cache_dir=tmp_path, progress=False)
    [target] = tmp_path.rglob(name)
    target.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged .* and made again"):
        assert len(load_corpus(TextFile(file), TOKENIZER, 16, cache_dir=tmp_path, progress=False)) == len(SENTENCES)


class Harm:
    """Makes a file where it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


def test_an_array_of_objects_is_not_unpickled(tmp_path):
    file, canary = tmp_path / "text.txt", tmp_path / "canary"
    file.write_bytes(TEXT)
    load_corpus(TextFile(file), TOKENIZER, 16, cache_dir=tmp_path, progress=False)
    [offsets] = tmp_path.rglob("offsets.npy")
    np.save(offsets, np.array([Harm(canary)], dtype=object), allow_pickle=True)
    report = offsets.with_name("report.json")
    stored = json.loads(report.read_text())
    stored["checksums"]["offsets.npy"] = sha256_of(offsets)
    report.write_text(json.dumps(stored))
    with pytest.warns(UserWarning, match="Python objects in dtype"):
        load_corpus(TextFile(file), TOKENIZER, 16, cache_dir=tmp_path, progress=False)
    assert not canary.exists()


# ---- tables --------------------------------------------------------------------------------------------------------


def table(suffix):
    rows = [{"text": sentence, "number": i, "note": None} for i, sentence in enumerate(SENTENCES[:8])]
    if suffix == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if suffix == ".parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), sink)
        return sink.getvalue().to_pybytes()
    separator = "\t" if suffix == ".tsv" else ","
    lines = [separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)]
    return "\n".join(lines).encode()


def read(folder, name, content, column="text"):
    """The table's lines, or None; the cache goes with the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    file = folder / name
    file.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYSTRESS_CACHE", str(folder / "cache"))
        return accepted(lines_of, str(file), column)


def lines_of(table, column):
    """The cells of a column, each with a line feed."""
    return b"".join(column_of_table(table, column)._cells()).decode()


def tables(suffix, count):
    @inputs(count)
    @given(st.data())
    def run(tmp_path_factory, data):
        valid = table(suffix)
        kinds = [spoiled(valid)]
        if suffix != ".parquet":
            kinds += [spoiled_lines(valid, {".csv": b",", ".tsv": b"\t", ".jsonl": b", "}[suffix]), CONTENTS]
        content = data.draw(st.one_of(kinds))
        column = data.draw(st.sampled_from(("text", "text", None, "number", "x", "")))
        read(tmp_path_factory.getbasetemp() / "tables", f"table{suffix}", content, column)

    return run


test_comma_separated = tables(".csv", 30)
test_tab_separated = tables(".tsv", 20)
test_lines_of_json = tables(".jsonl", 100)
test_parquet = tables(".parquet", 100)


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "\\ud800"}\n', b'{"text": "a\\u0000b"}\n', b'{"text": ["a"]}\n', b'{"text": 1}\n{"text": "a"}\n',
        b"{}\n", b'{"": "a"}\n', b'{"text": "a", "text": "b"}\n', b"null\n", b"[]", deep(100).encode(),
        b'{"text": ' + b"9" * 5000, b'{"text": "' + "é".encode() * 10**5 + b'"}\n', b'{"text": NaN}\n',
        b'{"text": null}\n', b'{"a\\nb": "x", "c": "y"}',
    ],
)  # fmt: skip
def test_rows_of_json(content, tmp_path):
    read(tmp_path / "table", "table.jsonl", content, None)


def test_a_column_of_bytes_that_says_it_is_text(tmp_path):
    """Parquet files are not checked by what reads them."""
    raw = pa.array([b"a cat", b"\xff\xfe", "\ud800".encode("utf-8", "surrogatepass")], pa.binary())
    pq.write_table(pa.table({"text": raw.view(pa.string())}), tmp_path / "table.parquet")
    with pytest.raises(UserError, match=r"--t.*table\.parquet"):
        lines_of(str(tmp_path / "table.parquet"), None)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".txt", ".gz"])
def test_what_is_no_file(suffix, tmp_path):
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / f"circle{suffix}").symlink_to(tmp_path / f"circle{suffix}")
    for name in ("folder", "circle", "missing", "x" * 300, "\udcff", "a\nb", "[a-", "a*b", "**"):
        path = str(tmp_path / f"{name}{suffix}")
        work = (lines_of, path, None)
        if suffix in (".txt", ".gz"):
            work = (load_corpus, TextFile(Path(path)), TOKENIZER, 16)
        assert accepted(*work) is None


def test_a_name_that_is_no_text_trains_and_is_recorded(flags, tmp_path, capsys):
    """A file's name is bytes, and the terminal and run.json are text."""
    file = tmp_path / "caf\udce9\x1b.txt"
    file.write_bytes(TEXT)
    assert main([*flags, f"--train_file={file}", "--max_steps=1"]) == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["settings"]["train_file"] == str(file)


def test_nothing_is_written_but_the_cache(tmp_path, monkeypatch):
    """A batch of texts and tables, with a look at the folders before and after."""
    places = places_apart(tmp_path, monkeypatch, "files")
    for number, content in enumerate([*ODD_BYTES, TEXT]):
        (places["files"] / f"{number}.txt").write_bytes(content)
    for suffix in (".csv", ".jsonl", ".parquet"):
        (places["files"] / f"whole{suffix}").write_bytes(table(suffix))
        (places["files"] / f"torn{suffix}").write_bytes(table(suffix)[:-9])
    before = snapshot(tmp_path)
    monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
    for file in sorted(places["files"].iterdir()):
        if file.suffix == ".txt":
            accepted(load_corpus, TextFile(file), TOKENIZER, 16, progress=False)
        else:
            accepted(lines_of, str(file), None)
    shutil.rmtree(tmp_path / "cache")
    assert snapshot(tmp_path) == before
