"""Training text from tables: every kind of file, every wrong one."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import hub_server, with_hub

from dystress_text.errors import UserError
from dystress_text.files.tables import is_table
from dystress_text.files.text_lines import CorpusReport
from dystress_text.simcse.texts import column_of_table, rows_of_table

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
    text = column_of_table(table, None, tsv_quoting=True)
    assert list(text.sentences(report, None)) == LINES
    assert (report.lines, report.empty, text.columns) == (5, 1, 1)
    assert column_of_table(table, "sentence", True).checksum() == text.checksum()
    assert column_of_table(table, "other", True).checksum() != text.checksum()


def test_quotation_marks_in_tsv_files_are_text(tmp_path):
    rows = [[str(i), ('"' * (i % 3)) + f"he said {i}" + '"' * (i % 2), "a dog"] for i in range(60)]
    file = tmp_path / "glue.TSV.gz"
    file.write_bytes(gzip.compress("".join("\t".join(row) + "\r\n" for row in [["id", "text", "b"], *rows]).encode()))
    assert lines_of(str(file)) == [row[1] for row in rows]
    text = rows_of_table(str(file), ["text", "b"])
    assert list(text.sentences(CorpusReport(), None)) == [cell for row in rows for cell in row[1:]]


def test_what_is_a_table():
    assert [name for name in ("a.csv", "b.TSV.xz", "c.jsonl", "d.parquet", "owner/name") if not is_table(name)] == []
    assert [name for name in ("a.txt", "a.txt.gz", "./x", "/a/b", "x", "a/b.txt", "a/b/c") if is_table(name)] == []


def test_wrong_columns_are_one_line(tmp_path):
    for columns, column, words in (
        ({"text": ["a"]}, "no_such", "text_column.*columns text"),
        ({"a": ["x"], "b": ["y"]}, None, "text_column.*columns a, b"),
        ({"text": [[1], [2]]}, None, "train_file.*row 1.*is not a text"),
    ):
        with pytest.raises(UserError, match=f"^{words}[^\n]*$"):
            lines_of(write(tmp_path, "jsonl", columns), column)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("bad.parquet", b"PAR1 no", "cannot read"),
     ("empty.csv", b"", "it is empty"),
     ("twice.csv", b"a,a\nx,y\n", "names a column twice: a, a"),
     ("tabs.csv", b"a\ttext\nx\ty\n", "header is one cell"),
     ("latin.csv", b"text\n\xe9\n", "not in UTF-8"),
     ("short.csv", b'a,text\n"x\ny",z\n\nx\n', "line 5 does not have the header's 2 cells but 1$"),
     ("more.tsv", b'a\ttext\n"x\ty\n1\t2\t"3\n', "line 3 .*2 cells but 3; tsv_quoting yes"),
     ("pandas.tsv", b'a\ttext\n1\t"x ""y"""\n', "line 2 has a cell in quotation marks .*tsv_quoting yes"),
     ("open.csv", b'a,text\n1,x\n2,"y\n3,z\n', "line 3: .*an unpaired quotation mark"),
     ("glue.tsv", b'a\ttext\n1\t"x" y\n', "line 2: .*tsv_quoting no takes"),
     ("labels.csv", b"text\n1\n0\n\n", "column 'text' of .* has no letter")],
)  # fmt: skip
def test_damaged_tables_are_one_line(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        list(column_of_table(str(tmp_path / name), None, name == "glue.tsv" or None).sentences(CorpusReport(), None))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_data_set_of_the_hub(tmp_path, monkeypatch):
    rows = "".join(json.dumps({"sentence": f"number {i}", "id": i}) + "\n" for i in range(5))
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["someone/texts"] = {"data/train.jsonl": rows.encode()}
        monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
        found = lines_of("someone/texts")
    assert found == [f"number {i}" for i in range(5)]
