"""Tables of every format, damaged ones, and exact names."""

import bz2
import csv
import gzip
import io
import json
import lzma
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
from dystress_text.errors import UserError
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
def test_reads_a_column(tmp_path, kind):
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
def test_reads_a_csv_of_pandas(rows, quoting, end):
    with tempfile.TemporaryDirectory() as folder:
        frame = pd.DataFrame(rows, columns=["a", "text"])
        frame.to_csv(file := f"{folder}/a.csv", index=False, quoting=quoting, lineterminator=end)
        assert list(open_table(file).rows(["a", "text"])) == rows


def test_reads_a_data_set_of_the_hub(tmp_path, monkeypatch):
    rows = "".join(json.dumps({"sentence": f"number {i}", "id": i}) + "\n" for i in range(5))
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["someone/texts"] = {"data/train.jsonl": rows.encode()}
        monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
        found = lines_of("someone/texts")
    assert found == [f"number {i}" for i in range(5)]


def test_tsv_has_no_quotation_marks(tmp_path):
    rows = [("1", '"he said" so'), ("2", '"'), ("3", '"Yes."')]
    lines = ["\t".join(row) for row in [("a", "text"), *rows]]
    file = tmp_path / "a.tsv"
    file.write_text("\n".join(lines))
    assert list(open_table(str(file)).rows(["a", "text"])) == rows


def test_tables_are_known_by_their_ending():
    assert all(map(is_table, ("a.csv", "b.TSV.xz", "c.jsonl", "d.parquet", "owner/name")))
    assert not any(map(is_table, ("a.txt", "a.txt.gz", "a.json", "./x", "/a/b", "x", "a/b/c")))


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("bad.parquet", b"PAR1 no"),
        ("empty.csv", b""),
        ("head.csv", b"text\n"),
        ("twice.csv", b"a,a\nx,y\n"),
        ("latin.tsv", b"text\n\xe9\n"),
        ("short.csv", b'a,text\n"x\ny",z\n\nx\n'),
        ("open.csv", b'a,text\n1,x\n2,"y\n3,z\n'),
        ("utf16.jsonl", '{"text": "a"}'.encode("utf-16")),
        ("list.jsonl", b'[{"text": "a"}]'),
        ("deep.jsonl", b'{"text": "a"}\n' + b'{"text": ' * 100_000),
        ("torn.csv.gz", gzip.compress(b"text\na\n", mtime=0)[:-9]),
        ("renamed.csv", gzip.compress(b"text\na\n", mtime=0)),
        ("none.jsonl", b'{"a": "x", "b": "y"}'),
        ("lists.jsonl", b'{"text": [1]}'),
    ],
)
def test_damaged_table_is_one_line(tmp_path, name, table):
    (tmp_path / name).write_bytes(table)
    with pytest.raises(UserError, match=rf"\A[^\n]*{name}[^\n]*\Z"):
        lines_of(str(tmp_path / name))


@pytest.mark.parametrize("name", ["data [1]", "a*b", "x::y", "**", "[!a]", "%5B1%5D", "~"])
def test_file_names_are_no_patterns(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for decoy in ("data 1", "ab", "b", "%5B1%5D1"):
        Path(f"{decoy}.jsonl").write_text('{"text": "a decoy"}')
    Path(f"{name}.jsonl").write_text('{"text": "mine"}')
    assert list(open_table(f"{name}.jsonl").rows(["text"])) == [("mine",)]


@pytest.mark.parametrize("pack", [gzip, lzma, bz2])
def test_compressed_tables(tmp_path, pack):
    packed = {gzip: "gz", lzma: "XZ", bz2: "bz2"}[pack]
    for kind in ("csv", "jsonl", "parquet"):
        file = tmp_path / f"a.{kind}.{packed}"
        file.write_bytes(pack.compress(content(kind, {"text": ["one", "two"]})))
        assert lines_of(str(file)) == ["one", "two"]


def test_long_cells(tmp_path):
    limit, page = csv.field_size_limit(), "word " * 12_000
    file = write(tmp_path, "csv", {"text": ["a", "b"], "page": [page, page]})
    assert lines_of(file, "page") == [page, page]
    assert csv.field_size_limit() == limit


def test_first_json_row_names_the_columns(tmp_path):
    rows = [{"text": "a", "m": {"x": [1, "y"]}}, {"id": "x", "text": "b"}, {"text": None}]
    file = tmp_path / "a.jsonl"
    file.write_text("\ufeff" + "\n\n".join(map(json.dumps, rows)))
    assert lines_of(str(file)) == ["a", "b"]
    with pytest.raises(UserError, match="text, m"):
        lines_of(str(file), "id")
