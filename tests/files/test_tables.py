"""Training text from tables: every kind of file, every wrong one."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import hub_server, with_hub

from dystress_text.errors import UserError
from dystress_text.files.tables import is_table
from dystress_text.files.text_lines import CorpusReport
from dystress_text.simcse.corpus import column_of_table

SENTENCES = ['the cat, it "sat"', "a line\nand another", "plain", "", "caf\u00e9 \U0001f600"]
LINES = ['the cat, it "sat"', "a line and another", "plain", "caf\u00e9 \U0001f600"]


def write(folder, kind, columns):
    path = folder / f"table.{kind}"
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind == "parquet":
        pq.write_table(pa.table(columns), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(columns), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


def lines_of(table, column=None):
    return list(column_of_table(table, column).sentences(CorpusReport(), None))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_column_becomes_lines(tmp_path, kind):
    table = write(tmp_path, kind, {"id": [1, 2, 3, 4, 5], "sentence": SENTENCES, "other": ["x"] * 5})
    report = CorpusReport()
    text = column_of_table(table, None)
    assert list(text.sentences(report, None)) == LINES
    assert (report.lines, report.empty, text.columns) == (5, 1, 1)
    assert column_of_table(table, "sentence").checksum() == text.checksum()
    assert column_of_table(table, "other").checksum() != text.checksum()
    assert lines_of(table, "other") == ["x"] * 5


def test_what_is_a_table():
    assert [name for name in ("a.csv", "b.TSV", "c.jsonl", "d.parquet", "owner/name") if not is_table(name)] == []
    assert [name for name in ("a.txt", "a.txt.gz", "./x", "/a/b", "x", "a/b.txt", "a/b/c") if is_table(name)] == []


BAD = [
    ({"text": ["a"]}, "no_such", ["text_column", "columns text"]),
    ({"a": ["x"], "b": ["y"]}, None, ["text_column", "columns a, b"]),
    ({"text": [[1], [2]]}, None, ["train_file", "row 1", "is not a text"]),
]


@pytest.mark.parametrize(("columns", "column", "words"), BAD)
def test_wrong_columns_are_one_line(tmp_path, columns, column, words):
    with pytest.raises(UserError) as caught:
        lines_of(write(tmp_path, "jsonl", columns), column)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [("bad.parquet", b"PAR1 no"), ("bad.jsonl", b'{"text": "a"\n{'), ("none.csv", None), ("empty.csv", b"")],
)
def test_damaged_tables_are_one_line(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="cannot read") as caught:
        lines_of(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_data_set_of_the_hub(tmp_path, monkeypatch):
    rows = "".join(json.dumps({"sentence": f"number {i}", "id": i}) + "\n" for i in range(5))
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["someone/texts"] = {"data/train.jsonl": rows.encode()}
        monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
        found = lines_of("someone/texts")
    assert found == [f"number {i}" for i in range(5)]
