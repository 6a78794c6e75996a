"""Training text from tables: every kind of file, every wrong one."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import re
import tempfile
import warnings
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import hub_server, with_hub
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dystress_text.errors import UserError
from dystress_text.evaluation.evaluators import read_scored_pairs
from dystress_text.files.tables import is_table, load_table
from dystress_text.files.text_lines import CorpusReport
from dystress_text.simcse.texts import column_of_table

SENTENCES = ['the cat, it "sat"', "a line\nand another", "plain", "", "caf\u00e9 \U0001f600"]
LINES = ['the cat, it "sat"', "a line and another", "plain", "caf\u00e9 \U0001f600"]


def content(kind, columns):
    """The bytes of a table."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind == "parquet":
        pq.write_table(pa.table(columns), sink := pa.BufferOutputStream())
        return sink.getvalue().to_pybytes()
    if kind.startswith("json"):
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        return (f"[{','.join(lines)}]" if kind == "json" else "\n".join(lines)).encode()
    csv.writer(text := io.StringIO(), delimiter="\t" if kind == "tsv" else ",").writerows(
        [list(columns), *(row.values() for row in rows)]
    )
    return text.getvalue().encode()


def write(folder, kind, columns):
    (path := folder / f"table.{kind}").write_bytes(content(kind, columns))
    return str(path)


def lines_of(table, column=None):
    return list(column_of_table(table, column).sentences(CorpusReport(), None))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_column_becomes_lines(tmp_path, kind):
    table = write(
        tmp_path, kind, {"id": [1, 2, 3, 4, 5], "sentence": SENTENCES, "other": ["x"] * 5}
    )
    report = CorpusReport()
    text = column_of_table(table, None)
    assert list(text.sentences(report, None)) == LINES
    assert (report.lines, report.empty, text.columns) == (5, 1, 1)
    assert column_of_table(table, "sentence").checksum() == text.checksum()
    assert column_of_table(table, "other").checksum() != text.checksum()


CELLS = st.text(st.sampled_from('""\t\n ,a1\u00e9'), max_size=6)


@given(
    st.lists(st.tuples(CELLS, CELLS), max_size=4),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.booleans(),
)
@settings(deadline=None)
def test_marks_that_writers_put_around_cells_of_a_tsv_come_off(rows, quoting, by_pandas):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True):
        with (file := Path(folder, "a.tsv")).open("w", newline="") as sink:
            if by_pandas:
                pd.DataFrame(rows, columns=["a", "text"]).to_csv(
                    sink, sep="\t", index=False, quoting=quoting
                )
            else:
                csv.writer(sink, delimiter="\t", quoting=quoting).writerows([("a", "text"), *rows])
        table = load_table(str(file))
        assert list(zip(table["a"], table["text"], strict=True)) == rows


@given(
    st.lists(st.tuples(CELLS, CELLS).map(lambda row: [re.sub(r"\s", " ", cell) for cell in row])),
    st.booleans(),
)
@example([["1", '"he said" so'], ["2", '"']], False)
@settings(deadline=None)
def test_marks_of_a_tsv_without_any_around_cells_are_text_and_where_they_need_not_be_it_is_said(
    rows, marks
):
    lines = [
        "\t".join(row) + "\n" for row in [['"a"', '"text"'] if marks else ["a", "text"], *rows]
    ]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (file := Path(folder, "a.tsv")).write_text("".join(lines))
        table = load_table(str(file))
        read = [table.column_names, *map(list, zip(*table[:].values(), strict=True))]
    try:
        quoted = list(csv.reader(lines, delimiter="\t", strict=True))
    except csv.Error:
        quoted = []
    others = {len(row) for row in quoted} == {2} and [
        line.strip("\n").split("\t") for line in lines
    ] != quoted
    assert [("are taken off" in str(each.message)) for each in said] == [read == quoted] * others
    assert others or "\n".join(map("\t".join, read)) + "\n" == "".join(lines)


@pytest.mark.parametrize(("lines", "read", "said"), [
    ('a\ttext\n1\t"x ""y"""', ['x "y"'], "taken off"), ('a\ttext\n1\t"Yes."', ['"Yes."'], "taken as text"),
    ('"a"\t"text"\n1\t"Yes."', ["Yes."], "taken off"), ('a\ttext\n1\t"x" y\n2\t"x ""y"""', ['"x" y', '"x ""y"""'], ""),
    ('a\ttext\n1\t"Yes."\n2\t"x\ty"', ["Yes.", "x\ty"], "taken off"),  # the only way to two cells
])  # fmt: skip
def test_what_stands_around_cells_of_a_tsv(tmp_path, lines, read, said, recwarn):
    (tmp_path / "a.tsv").write_text(lines)
    assert load_table(str(tmp_path / "a.tsv"))["text"][:] == read
    assert [said in str(each.message) for each in recwarn] == [True] * bool(said)


def test_what_is_a_table():
    assert [
        name
        for name in ("a.csv", "b.TSV.xz", "c.jsonl", "d.parquet", "owner/name")
        if not is_table(name)
    ] == []
    assert [
        name
        for name in ("a.txt", "a.txt.gz", "./x", "/a/b", "x", "a/b.txt", "a/b/c")
        if is_table(name)
    ] == []


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [("bad.parquet", b"PAR1 no", "cannot read"),
     ("empty.csv", b"", "it is empty"),
     ("twice.csv", b"a,a\nx,y\n", "names a column twice: a, a"),
     ("tabs.csv", b"a\ttext\nx\ty\n", "header is one cell"),
     ("latin.csv", b"text\n\xe9\n", "not in UTF-8"),
     ("short.csv", b'a,text\n"x\ny",z\n\nx\n', "line 5 does not have the header's 2 cells but 1$"),
     ("more.tsv", b'a\ttext\n"x\ty\n1\t2\t"3\n', "line 3 .*2 cells but 3 .quotation marks are read as text"),
     ("open.csv", b'a,text\n1,x\n2,"y\n3,z\n', "line 3: .*an unpaired quotation mark"),
     ("pipe.csv", b"label|text\n0|a, b\n", "header is one cell.*commas between cells"),
     ("colon.tsv", b"0:The cat ran\n", "header is one cell"), ("hat.csv", b"a^b\n", "header is one cell"),
     ("latin.jsonl", b'{"text": "caf\xe9"}\n', "not in UTF-8 but probably in LATIN1 .*: iconv"),
     ("utf16.json", '{"text": "a"}'.encode("utf-16"), "must be in UTF-8"),
     ("nulls.jsonl", b'null\n{"text": "a"}\n', "begin with a row"), ("texts.json", b'["a", "b"]', "list of objects"),
     ("torn.csv.gz", gzip.compress(b"text\na\n", mtime=0)[:-9], "end-of-stream"),
     ("none.jsonl", b'{"a": "x", "b": "y"}', "text_columns: .* has the columns a, b; name one"),
     ("lists.jsonl", b'{"text": [1]}', "train_file: row 1 .* is not a text"),
     ("labels.csv", b"text\n1\n0\n\n", "text_columns: column 'text' of .* has no letter")],
)  # fmt: skip
def test_damaged_tables_are_one_line(tmp_path, name, table, said):
    (tmp_path / name).write_bytes(table)
    with pytest.raises(UserError, match=said) as caught:
        list(column_of_table(str(tmp_path / name), None).sentences(CorpusReport(), None))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


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


@given(SIGNS, st.sampled_from([".jsonl", ".json", ".parquet", ".csv"]))
@example("data [1]", ".jsonl")
@example("a*b", ".jsonl")
@example("x::y", ".json")
@example("**", ".parquet")
@example("[!a]", ".parquet")
@example("%5B1%5D", ".jsonl")
@example("~", ".jsonl")
@settings(max_examples=25, deadline=None)
def test_a_file_is_read_by_its_exact_name(name, ending):
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYSTRESS_CACHE", str(Path(place, "ca[1]he")))
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
            assert load_table(source)["text"][:] == [name]
        assert [
            each for each in Path(place, "ca[1]he").rglob("*") if each.is_file()
        ] == []  # no copy stays


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


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, bytes])
@pytest.mark.parametrize("name", ["a{}", "a{}.GZ", "a{}.xz"])
def test_a_table_is_unpacked_by_its_content_under_any_name(tmp_path, name, pack):
    for ending in (".csv", ".TSV", ".jsonl", ".parquet"):
        file = tmp_path / name.format(ending)
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
    assert list(column_of_table(file, "page").sentences(report := CorpusReport(), None)) == []
    assert (report.over_long, csv.field_size_limit()) == (2, limit)


def test_rows_of_json_may_differ(tmp_path):
    rows = [
        {"text": "a", "id": 1, "m": {"x": [1, "y"]}},
        {"id": "x", "text": "b"},
        {"text": None, "more": [None]},
    ]
    for name, text in (
        ("a.jsonl", "\n".join(map(json.dumps, rows))), ("a.json", json.dumps(rows, indent=1)),
        ("b.json", "\ufeff" + "\n".join(json.dumps(row, indent=1) for row in [{"text": "a"}, rows[2]])),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        assert lines_of(str(tmp_path / name)) == ["a", "b"][: 1 + (name != "b.json")]
