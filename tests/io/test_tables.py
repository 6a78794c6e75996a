"""Tables: every format, every file that is none, and exact names."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import re
import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import hub_server, with_hub
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dystress_text.config.settings import TextSettings
from dystress_text.data.texts import table_text
from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.evaluators import read_scored_pairs
from dystress_text.io.tables import is_table, open_table
from dystress_text.io.text_lines import CorpusReport

SENTENCES = ['the cat, it "sat"', "a line\nand another", "plain", "", "caf\u00e9 \U0001f600"]
LINES = ['the cat, it "sat"', "a line and another", "plain", "caf\u00e9 \U0001f600"]


def content(kind, columns):
    """The bytes of a table."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind == "parquet":
        pq.write_table(pa.table(columns), sink := pa.BufferOutputStream())
        return sink.getvalue().to_pybytes()
    if kind == "jsonl":
        return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
    cells = [list(columns), *([*row.values()] for row in rows)]
    if kind == "tsv":
        return "\n".join("\t".join(map(str, row)) for row in cells).encode()
    csv.writer(text := io.StringIO()).writerows(cells)
    return text.getvalue().encode()


def write(folder, kind, columns):
    (path := folder / f"table.{kind}").write_bytes(content(kind, columns))
    return str(path)


def text_of(source, column=None):
    columns = None if column is None else [column]
    return table_text(open_table(source), TextSettings(text_columns=columns))


def lines_of(source, column=None):
    return list(text_of(source, column).sentences(CorpusReport(), None))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_column_becomes_lines(tmp_path, kind):
    table = write(
        tmp_path, kind, {"id": [1, 2, 3, 4, 5], "sentence": SENTENCES, "other": ["x"] * 5}
    )
    report, text = CorpusReport(), text_of(table)
    assert list(text.sentences(report, None)) == LINES
    assert (report.lines, report.empty, text.columns) == (5, 1, 1)
    assert text_of(table, "sentence").checksum() == text.checksum()
    assert text_of(table, "other").checksum() != text.checksum()


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=6)
ROWS = st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4)


@given(ROWS, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(["\n", "\r\n"]))
@example([('"', '"a"'), ("a,b", "a\n\nb")], csv.QUOTE_MINIMAL, "\r\n")
@settings(deadline=None)
def test_a_csv_of_pandas_is_read_back(rows, quoting, end):
    with tempfile.TemporaryDirectory() as folder:
        frame = pd.DataFrame(rows, columns=["a", "text"])
        frame.to_csv(file := f"{folder}/a.csv", index=False, quoting=quoting, lineterminator=end)
        assert list(open_table(file).rows(["a", "text"])) == rows


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1).map(
    lambda rows: [tuple(re.sub(r"[\t\n]", " ", cell) for cell in row) for row in rows]
), st.sampled_from(["\n", "\r\n"]))  # fmt: skip
@example([("1", '"he said" so'), ("2", '"'), ("3", '"Yes."')], "\n")
@settings(deadline=None)
def test_quotation_marks_of_a_tsv_are_text(rows, end):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a.tsv")
        lines = [f"{a}\t{b}{end}" for a, b in [("a", "text"), *rows]]
        file.write_text("".join(lines), encoding="utf-8", newline="")
        assert list(open_table(str(file)).rows(["a", "text"])) == rows


def test_what_is_a_table():
    tables = ("a.csv", "b.TSV.xz", "c.jsonl", "d.parquet", "owner/name")
    assert [name for name in tables if not is_table(name)] == []
    others = ("a.txt", "a.txt.gz", "a.json", "./x", "/a/b", "x", "a/b.txt", "a/b/c")
    assert [name for name in others if is_table(name)] == []


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [("bad.parquet", b"PAR1 no", "cannot read"),
     ("empty.csv", b"", "it has no rows"),
     ("head.csv", b"text\n", "it has no rows"),
     ("twice.csv", b"a,a\nx,y\n", "names a column twice: a, a"),
     ("tabs.csv", b"a\ttext\nx,\ty\n", "line 2 does not have the header's 1 cells"),
     ("latin.csv", b"text\n\xe9\n", "expected UTF-8"),
     ("latin.tsv", b"text\n\xe9\n", "expected UTF-8"),
     ("short.csv", b'a,text\n"x\ny",z\n\nx\n', "line 5 does not have the header's 2 cells$"),
     ("more.tsv", b'a\ttext\n"x\ty\n1\t2\t"3\n', "line 3 does not have the header's 2 cells$"),
     ("open.csv", b'a,text\n1,x\n2,"y\n3,z\n', "after line 2: .*; expected quotation marks"),
     ("latin.jsonl", b'{"text": "caf\xe9"}\n', "expected UTF-8"),
     ("utf16.jsonl", '{"text": "a"}'.encode("utf-16"), "expected UTF-8"),
     ("nulls.jsonl", b'null\n{"text": "a"}\n', "line 1 is not a JSON object"),
     ("list.jsonl", b'[{"text": "a"}]', "line 1 is not a JSON object"),
     ("deep.jsonl", b'{"text": "a"}\n' + b'{"text": ' * 100_000, "line 2 is not a JSON object"),
     ("torn.csv.gz", gzip.compress(b"text\na\n", mtime=0)[:-9], "end-of-stream"),
     ("fake.csv.xz", b"text\na\n", "cannot read"),
     ("renamed.csv", gzip.compress(b"text\na\n", mtime=0), "expected UTF-8"),
     ("none.jsonl", b'{"a": "x", "b": "y"}', "text_columns: .* has the columns a, b; name the one"),
     ("lists.jsonl", b'{"text": [1]}', "train_file: row 1 of .*: expected a text, got .* list")],
)  # fmt: skip
def test_damaged_tables_are_one_line(tmp_path, name, table, said):
    (tmp_path / name).write_bytes(table)
    with pytest.raises(UserError, match=said) as caught:
        lines_of(str(tmp_path / name))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_whose_strings_are_not_utf8_is_one_line(tmp_path):
    offsets, data = pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xe9")
    strings = pa.StringArray.from_buffers(1, offsets, data)
    pq.write_table(pa.table({"text": strings}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"^cannot read .*a.parquet': expected UTF-8"):
        lines_of(str(tmp_path / "a.parquet"))


def test_a_data_set_of_the_hub(tmp_path, monkeypatch):
    rows = "".join(json.dumps({"sentence": f"number {i}", "id": i}) + "\n" for i in range(5))
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["someone/texts"] = {"data/train.jsonl": rows.encode()}
        monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
        found = lines_of("someone/texts")
    assert found == [f"number {i}" for i in range(5)]


SIGNS = st.text(
    st.sampled_from(" [1]*?:#%~-{a,b}!$&;'\"\u00e9\u65e5\u0301"), min_size=1, max_size=8
)


@given(SIGNS, st.sampled_from([".jsonl", ".parquet", ".csv"]))
@example("data [1]", ".jsonl")
@example("a*b", ".jsonl")
@example("x::y", ".jsonl")
@example("**", ".parquet")
@example("[!a]", ".parquet")
@example("%5B1%5D", ".jsonl")
@example("~", ".jsonl")
@settings(max_examples=25, deadline=None)
def test_a_file_is_read_by_its_exact_name(name, ending):
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        meant = re.sub(r"\[!?(.)[^]]*\]|[*?]", r"\1", name)
        for decoy in {
            meant,
            meant + "1",
            name.replace("*", "cc").replace("?", "c"),
            "data 1",
            "ab",
            "b",
        } - {name}:
            Path(decoy + ending).write_bytes(content(ending[1:], {"text": ["a decoy"]}))
        Path(name + ending).write_bytes(content(ending[1:], {"text": [name]}))
        for source in (name + ending, str(Path(place, name + ending))):
            assert list(open_table(source).rows(["text"])) == [(name,)]


def test_a_name_like_an_address_is_a_file_for_evaluation_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, score in (("s3:/b", 1), ("b", 2)):
        Path(folder).mkdir(parents=True)
        rows = {"sentence1": ["a", "b"], "sentence2": [folder, folder], "score": [score, 9]}
        Path(folder, "dev.jsonl").write_bytes(content("jsonl", rows))
    assert read_scored_pairs("s3://b/dev.jsonl").second == ("s3:/b",) * 2


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".csv"])
def test_a_file_that_changed_within_its_time_is_read_again(tmp_path, ending):
    file = tmp_path / f"a{ending}"
    for text in ("one", "two"):
        file.write_bytes(content(ending[1:], {"text": [text]}))
        os.utime(file, (1e9, 1e9))
        assert lines_of(str(file)) == [text]


@pytest.mark.parametrize(
    ("packed", "pack"),
    [("{}.gz", gzip.compress), ("{}.XZ", lzma.compress), ("{}.bz2", bz2.compress), ("{}", bytes)],
)
def test_a_compressed_table_is_known_by_its_ending(tmp_path, packed, pack):
    for ending in (".csv", ".TSV", ".jsonl", ".parquet"):
        file = tmp_path / packed.format(f"a{ending}")
        file.write_bytes(pack(content(ending[1:].lower(), {"text": ["one", "two"]})))
        assert lines_of(str(file)) == ["one", "two"]


def test_a_long_cell_is_a_cell(tmp_path):
    limit, page = csv.field_size_limit(), "word " * 40_000
    file = write(
        tmp_path,
        "csv",
        {"text": ["a cat", "a dog"], "page": [page, page], "x": ["a", page[:60_000]]},
    )
    assert lines_of(file) == ["a cat", "a dog"]
    assert lines_of(file, "x") == ["a", page[:60_000]]
    assert list(text_of(file, "page").sentences(report := CorpusReport(), None)) == []
    assert (report.over_long, csv.field_size_limit()) == (2, limit)


def test_rows_of_json_may_differ_and_the_first_names_the_columns(tmp_path):
    rows = [
        {"text": "a", "id": 1, "m": {"x": [1, "y"]}},
        {"id": "x", "text": "b"},
        {"text": None, "more": [None]},
    ]
    file = tmp_path / "a.jsonl"
    file.write_text("\ufeff" + "\n\n".join(map(json.dumps, rows)))
    assert lines_of(str(file)) == ["a", "b"]
    with pytest.raises(UserError, match="has the columns text, id, m; name the one"):
        lines_of(str(file), "more")
