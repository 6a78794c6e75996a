"""Which columns of a table are read, what a run prints of its samples, and texts from Python."""

import hashlib
import json
from dataclasses import replace

import datasets
import pandas as pd
import pytest
from conftest import make_sentences
from hypothesis import given
from hypothesis import strategies as st
from trainer_cases import interrupt

import dystress_text
from dystress_text.config.settings import RunSettings, TextSettings
from dystress_text.data.texts import (
    plain_text,
    reading_lines,
    table_text,
    training_text,
    usual_columns,
    with_texts,
)
from dystress_text.errors import ParameterError, UserError
from dystress_text.io.tables import python_table
from dystress_text.io.text_lines import CorpusReport

LINES = make_sentences(40)


@pytest.mark.parametrize(
    ("columns", "supervised", "read"),
    [
        ("x", False, "x"),
        ("label text", False, "text"),
        ("sentence id", False, "sentence"),
        ("sent0 sent1 hard_neg", False, ""),
        ("sent0 sent1 hard_neg", True, "sent0 sent1 hard_neg"),
        ("label positive anchor", True, "anchor positive"),
        ("id negative_2 anchor positive negative_1", True, "anchor positive negative_2 negative_1"),
        ("query positive negative", True, "query positive negative"),
    ],
)
def test_default_columns(columns, supervised, read):
    assert usual_columns(columns.split(), supervised) == read.split()


def sentences_of(text):
    return list(text.sentences(CorpusReport(), None))


@pytest.mark.parametrize("cell", ["", " \u200b", "a\0b", "x" * 65_537, None, 3, ["x"], "\ud800"])
def test_invalid_cells(tmp_path, cell):
    file = tmp_path / "rows.jsonl"
    rows = [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": cell}]
    file.write_text("\n".join(map(json.dumps, rows)))
    text = training_text(TextSettings(train_file=[str(file)], supervised=True))
    with pytest.raises(ParameterError, match=r"row 2 of .*, column 'positive': ") as caught:
        sentences_of(text)
    assert len(str(caught.value)) < 300


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))


@given(st.lists(CELLS, min_size=1))
def test_a_list_is_read_like_a_file(texts):
    read = table_text(python_table(texts), TextSettings())
    assert read.checksum() == hashlib.sha256("".join(f"{x}\n" for x in texts).encode()).hexdigest()
    kept = [x for x in texts if "\0" not in x]
    assert set(sentences_of(read)) <= set(kept)
    assert sentences_of(table_text(python_table(tuple(texts)), TextSettings())) == sentences_of(
        read
    )


def test_columns_of_a_data_set():
    data = datasets.Dataset.from_dict({"id": [1, 2, 3], "text": ["a", None, "c"]}).select([2, 1])
    assert sentences_of(with_texts(RunSettings.of({}), data)[1]) == ["c"]
    assert sentences_of(with_texts(RunSettings.of({}), data["text"][:1])[1]) == ["c"]
    pairs = datasets.Dataset.from_dict({"positive": ["b"], "score": [1.5], "anchor": ["a"]})
    given = RunSettings.of({"supervised": True})
    assert sentences_of(with_texts(given, pairs)[1]) == ["a", "b"]
    with pytest.raises(ParameterError, match=r"^text_columns: .*or give supervised"):
        with_texts(RunSettings.of({}), pairs)


def write_tickets(folder):
    """Write three files of tickets, each with an identifier that is a number."""
    rows = [("Printer", "It is on fire."), ("Printer", ""), ("", "No body"), ("", "")]
    for number, (subject, body) in enumerate([*rows, *rows[:2]]):
        file = folder / f"tickets-{number % 3}.jsonl"
        with file.open("a") as stream:
            ticket = {"id": number, "subject": subject, "body": body}
            stream.write(json.dumps(ticket) + "\n")


def test_joined_columns_and_patterns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tickets(tmp_path)
    frame = pd.concat(pd.read_json(f"tickets-{i}.jsonl", lines=True) for i in range(3))
    joined = (frame["subject"] + " " + frame["body"]).str.strip().tolist()
    settings = TextSettings(train_file=["tickets-*.jsonl"], text_columns=["subject", "body"])
    text = training_text(settings)
    report = text.report()
    assert list(text.sentences(report, None)) == [each for each in joined if each]
    first, sample, *_ = reading_lines(text, report, dropped=False)
    assert first.startswith("5 rows; 1 empty (left out), 2 duplicates (kept)")
    assert sample == f"sample 1, subject + body: {joined[0]!r}"
    names = ["tickets-0.jsonl", "tickets-1.jsonl", "tickets-2.jsonl"]
    assert training_text(replace(settings, train_file=names)).checksum() == text.checksum()
    data = datasets.Dataset.from_pandas(frame, preserve_index=False)
    given = RunSettings.of({"text_columns": ["subject", "body"]})
    assert sentences_of(with_texts(given, data)[1]) == [each for each in joined if each]


def test_files_are_concatenated_without_byte_order_marks(tmp_path):
    for name, content in (("a.txt", "\ufeffone\ntwo"), ("b.txt", "\ufeffthree\n")):
        (tmp_path / name).write_text(content)
    text = training_text(TextSettings(train_file=[f"{tmp_path}/[ab].txt"]))
    assert sentences_of(text) == ["one", "two", "three"]
    assert text.checksum() != plain_text(tmp_path / "a.txt").checksum()


SECRET = "secret"


@pytest.mark.parametrize(
    "texts",
    [
        [],
        SECRET,
        datasets.DatasetDict(),
        [SECRET, 3.5],
        pd.Series([SECRET, None, 2]),
        [(SECRET,)],
        [(SECRET, "b"), (SECRET, "b", "c")],
        [(SECRET, "b"), (SECRET, "")],
        [SECRET, "\ud800"],
    ],
)
def test_errors_of_lists_do_not_show_the_data(texts):
    with pytest.raises(ParameterError, match=r"^texts: ") as caught:
        dystress_text.train("small", texts=texts)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_list_trains_like_a_file(tmp_path):
    options = {"preset": "quickstart", "max_steps": 2, "eval_set": "none", "train_batch_size": 8}
    (tmp_path / "mine.txt").write_text("".join(f"{line}\n" for line in LINES))
    of_file = dystress_text.train(
        **options, train_file=tmp_path / "mine.txt", output_dir=tmp_path / "file"
    )
    options |= {"output_dir": tmp_path / "list"}
    of_list = dystress_text.train(**options, texts=LINES)
    weights = [(run.folder / "model.safetensors").read_bytes() for run in (of_file, of_list)]
    assert weights[0] == weights[1]
    checksum = of_list.record["corpus"]["sha256"]
    assert checksum == of_file.record["corpus"]["sha256"]
    name = f"list of 40 texts, sha256 {checksum[:16]}"
    assert of_list.record["settings"]["train_file"] == name

    options["resume_from_checkpoint"] = "yes"
    assert dystress_text.train(**options, texts=LINES).record == of_list.record
    with pytest.raises(UserError, match=f"train_file was {name}, is list of 40 texts, "):
        dystress_text.train(**options, texts=LINES[::-1])


def test_resume_with_a_list(tmp_path):
    options = {"preset": "quickstart", "eval_set": "none", "train_batch_size": 8, "max_steps": 4}
    options |= {"save_steps": 2, "output_dir": tmp_path / "out"}
    run = dystress_text.train(**options, texts=LINES)
    weights = (run.folder / "model.safetensors").read_bytes()
    interrupt(run.folder)
    options["resume_from_checkpoint"] = "yes"
    with pytest.raises(UserError, match="data"):
        dystress_text.train(**options, texts=LINES[::-1])
    again = dystress_text.train(**options, texts=LINES)
    assert (again.folder / "model.safetensors").read_bytes() == weights
