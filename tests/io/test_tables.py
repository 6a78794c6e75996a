"""Tables of every format, damaged ones, and exact names."""

import csv
import gzip
import json
import tempfile
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset
from hub_server import hub_server, with_hub
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dystress_text.errors import ParameterError, UserError
from dystress_text.finetuning.settings import TextSettings
from dystress_text.finetuning.texts import table_text
from dystress_text.io.tables import is_table, open_table, python_table

SENTENCES = ['the cat, it "sat"', "a line\nand another", "plain", "", "caf\u00e9 \U0001f600"]
LINES = ['the cat, it "sat"', "a line and another", "plain", "caf\u00e9 \U0001f600"]
COLUMNS = {"id": [1, 2, 3, 4, 5], "sentence": SENTENCES, "page": ["word " * 30_000] * 5}


def lines_of(source, column=None):
    columns = None if column is None else [column]
    text = table_text(open_table(str(source)), TextSettings(text_columns=columns))
    return list(text.sentences())


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "csv.gz", "jsonl.XZ", "csv.bz2"])
def test_reads_a_column(tmp_path, ending):
    table = pd.DataFrame(COLUMNS)
    write = {
        "csv": partial(table.to_csv, index=False),
        "jsonl": partial(table.to_json, orient="records", lines=True, force_ascii=False),
        "parquet": table.to_parquet,
    }
    file = tmp_path / f"table.{ending.lower()}"
    write[ending.split(".")[0]](file)
    file = file.rename(tmp_path / f"table.{ending}")
    assert lines_of(file) == lines_of(file, "sentence") == LINES
    assert lines_of(file, "page") == []  # longer than a training sentence may be


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=6)
ROWS = st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4)


@given(ROWS, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.sampled_from(["\n", "\r\n"]))
@example([('"', '"a"'), ("a,b", "a\n\nb")], csv.QUOTE_MINIMAL, "\r\n")
@settings(deadline=None, max_examples=25)
def test_reads_a_csv_of_pandas(rows, quoting, end):
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/a.csv"
        frame = pd.DataFrame(rows, columns=["a", "text"])
        frame.to_csv(file, index=False, quoting=quoting, lineterminator=end)
        assert list(open_table(file).rows(["a", "text"])) == rows


def test_reads_a_data_set_of_the_hub(tmp_path, monkeypatch):
    rows = "".join(json.dumps({"sentence": f"number {i}", "id": i}) + "\n" for i in range(5))
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["someone/texts"] = {"data/train.jsonl": rows.encode()}
        monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
        found = lines_of("someone/texts")
    assert found == [f"number {i}" for i in range(5)]


ROW = {"a": "x", "b": "y"}


@pytest.mark.parametrize(
    ("texts", "columns", "rows"),
    [
        (pd.Series(["x", "y"]), ["text"], [("x",), ("y",)]),
        (iter([("x", "y")]), ["anchor", "positive"], [("x", "y")]),
        ([list("xyzv")], ["anchor", "positive", "negative", "negative_2"], [tuple("xyzv")]),
        (Dataset.from_list([ROW]), ["a", "b"], [("x", "y")]),
        (Dataset.from_list([ROW]).with_format("torch", ["b"]), ["b"], [("y",)]),
        (Dataset.from_list([ROW]).with_transform(lambda _: {"c": ["z"]}), ["c"], [("z",)]),
    ],
)
def test_data_in_memory(texts, columns, rows):
    table = python_table(texts)
    assert list(table.columns) == columns
    assert list(table.rows(columns)) == rows


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ([], "empty"),
        ("a text", "str"),
        (pd.DataFrame([ROW]), "DataFrame"),
        ([("a", "b"), ("c", "d", "e")], "item 1: expected 2"),
        ([("a", "b"), ("c", 5)], "item 1: .*int"),
        (["a", None], "item 1: .*NoneType"),
    ],
)
def test_other_data_in_memory_are_refused(texts, named):
    with pytest.raises(ParameterError, match=f"^texts: .*{named}"):
        python_table(texts)


def test_tsv_has_no_quotation_marks(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text('a\ttext\n1\t"he said" so\n2\t"\n')
    rows = [("1", '"he said" so'), ("2", '"')]
    assert list(open_table(str(file)).rows(["a", "text"])) == rows


def test_tables_are_known_by_their_ending():
    assert all(map(is_table, ("a.csv", "b.TSV.xz", "c.jsonl", "d.parquet", "owner/name")))
    assert not any(map(is_table, ("a.txt", "a.txt.gz", "a.json", "./x", "/a/b", "x", "a/b/c")))


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("bad.parquet", b"PAR1 no"),
        ("empty.csv", b""),
        ("twice.csv", b"a,a\nx,y\n"),
        ("latin.tsv", b"text\n\xe9\n"),
        ("short.csv", b'a,text\n"x\ny",z\n\nx\n'),
        ("open.csv", b'a,text\n1,x\n2,"y\n3,z\n'),
        ("deep.jsonl", b'{"text": "a"}\n' + b'{"text": ' * 100_000),
        ("torn.csv.gz", gzip.compress(b"text\na\n", mtime=0)[:-9]),
        ("none.jsonl", b'{"a": "x", "b": "y"}'),
        ("lists.jsonl", b'{"text": [1]}'),
    ],
)
def test_damaged_table_is_one_line(tmp_path, name, table):
    (tmp_path / name).write_bytes(table)
    with pytest.raises(UserError, match=rf"\A[^\n]*{name}[^\n]*\Z"):
        lines_of(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "header", "separator"),
    [
        ("a.csv", "id;text", ";"),
        ("a.csv", "id\ttext", r"\\t"),
        ("a.csv.gz", "id|text", r"\|"),
        ("a.tsv", "id,text", ","),
    ],
)
def test_another_separator_is_named(name, header, separator, tmp_path):
    data = f"{header}\n1;x, y\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(UserError, match=f"is the separator '{separator}'"):
        open_table(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "header", "cell", "pack"),
    [
        ("a.csv", ["text"], "{}", bytes),
        ("a.csv.gz", ["text"], "{}", gzip.compress),
        ("a.jsonl", [], '{{"text": "{}"}}', bytes),
    ],
)
def test_the_line_that_is_not_utf8_is_named(name, header, cell, pack, tmp_path):
    words = ["one"] * 3000 + ["naïve"] * 3000
    lines = [*header, *(cell.format(word) for word in words)]
    (tmp_path / name).write_bytes(pack("\n".join(lines).encode("latin-1")))
    with pytest.raises(UserError, match=f"line {len(header) + 3001} .*iconv"):
        lines_of(tmp_path / name, "text")


@pytest.mark.parametrize("name", ["data [1]", "a*b", "x::y"])
def test_file_names_are_no_patterns(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for decoy in ("data 1", "ab", "b"):
        Path(f"{decoy}.jsonl").write_text('{"text": "a decoy"}')
    Path(f"{name}.jsonl").write_text('{"text": "mine"}')
    assert list(open_table(f"{name}.jsonl").rows(["text"])) == [("mine",)]


def test_first_json_row_names_the_columns(tmp_path):
    rows = [{"text": "a", "m": {"x": [1, "y"]}}, {"id": "x", "text": "b"}, {"text": None}]
    file = tmp_path / "a.jsonl"
    file.write_text("\ufeff" + "\n\n".join(map(json.dumps, rows)))
    assert lines_of(file) == ["a", "b"]
    with pytest.raises(UserError, match="text, m"):
        lines_of(file, "id")
