"""Which columns of a table are read, what a run prints of its samples, and texts from Python."""

import hashlib
import json
from dataclasses import replace

import datasets
import numpy as np
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
        ("sentence text", False, "text"),
        ("sent0 sent1 hard_neg", False, ""),
        ("Text id", False, ""),
        ("sent0 sent1 hard_neg", True, "sent0 sent1 hard_neg"),
        ("label positive anchor", True, "anchor positive"),
        ("negative positive anchor", True, "anchor positive negative"),
        ("id negative_2 anchor positive negative_1", True, "anchor positive negative_2 negative_1"),
        ("query positive negative", True, "query positive negative"),
    ],
)
def test_columns_are_found_by_their_names_or_their_order_alone(columns, supervised, read):
    assert usual_columns(columns.split(), supervised) == read.split()


def sentences_of(text):
    return list(text.sentences(CorpusReport(), None))


@pytest.mark.parametrize("cell", ["", " \u200b", "a\0b", "x" * 65_537, None, 3, ["x"], "\ud800"])
def test_a_row_with_a_cell_that_is_no_text_is_refused_without_its_content(tmp_path, cell):
    file = tmp_path / "rows.jsonl"
    rows = [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": cell}]
    file.write_text("\n".join(map(json.dumps, rows)))
    text = training_text(TextSettings(train_file=[str(file)], supervised=True))
    with pytest.raises(ParameterError, match=r"row 2 of .*, column 'positive': ") as caught:
        sentences_of(text)
    assert len(str(caught.value)) < 300


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))


@given(st.lists(CELLS, min_size=1))
def test_a_list_is_read_as_a_file_with_its_texts_is(texts):
    read = table_text(python_table(texts), TextSettings())
    assert read.checksum() == hashlib.sha256("".join(f"{x}\n" for x in texts).encode()).hexdigest()
    kept = [x for x in texts if "\0" not in x]
    assert set(sentences_of(read)) <= set(kept)
    assert sentences_of(table_text(python_table(tuple(texts)), TextSettings())) == sentences_of(
        read
    )


@pytest.mark.parametrize("width", [2, 3, 5])
def test_rows_of_a_list_are_anchors_positives_and_negatives(width):
    rows = [[f"{i} {j}" for j in range(width)] for i in range(4)]
    settings, read = with_texts(RunSettings.of({"preset": "small"}), rows)
    assert settings.text.supervised
    assert read.column_names[:3] == ("anchor", "positive", "negative")[:width]
    assert sentences_of(read) == [cell for row in rows for cell in row]


def test_the_columns_of_a_data_set_are_found_as_those_of_a_file():
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


def test_columns_are_joined_and_the_files_of_a_pattern_are_one_text(tmp_path, monkeypatch):
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


def test_files_of_lines_are_one_text_whose_marks_are_dropped(tmp_path):
    for name, content in (("a.txt", "\ufeffone\ntwo"), ("b.txt", "\ufeffthree\n")):
        (tmp_path / name).write_text(content)
    text = training_text(TextSettings(train_file=[f"{tmp_path}/[ab].txt"]))
    assert sentences_of(text) == ["one", "two", "three"]
    assert text.checksum() != plain_text(tmp_path / "a.txt").checksum()


SECRET = "secret"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "the list is empty"),
        (SECRET, "expected a list or Series of strings, .* got str"),
        ({SECRET}, "expected a list or Series of strings, .* got set"),
        (datasets.DatasetDict(), "expected a list or Series of strings, .* got DatasetDict"),
        ([SECRET, 3.5], "item 1, text: expected a string, got float"),
        (pd.Series([SECRET, None, 2]), "item 1, text: expected a string, got NoneType"),
        (np.array([7, 8]), "item 0: expected a string, or a list or tuple of strings, got int"),
        ([3.5, SECRET], "item 0: expected a string, or a list or tuple of strings"),
        ([(SECRET,)], "item 0: expected a string, or a list or tuple of strings"),
        ([SECRET, (SECRET, "b")], "item 1, text: expected a string, got a tuple of 2"),
        ([(SECRET, "b"), SECRET], "item 1: expected 2 strings, as a list or tuple"),
        ([(SECRET, "b"), (SECRET, "b", "c")], "item 1: expected 2 strings, .* got a tuple of 3"),
        ([(SECRET, "b"), (SECRET, None)], "item 1, positive: expected a string, got NoneType"),
        ([(SECRET, "b"), (SECRET, "")], "item 1, positive: it is empty"),
        ([SECRET, "\ud800"], "item 1, text: "),
    ],
)
def test_a_wrong_list_is_one_line_that_never_shows_the_data(texts, said):
    with pytest.raises(ParameterError, match=f"^texts: {said}") as caught:
        dystress_text.train("small", texts=texts)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_list_trains_as_a_file_and_is_known_again_by_its_content(tmp_path, capsys):
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
    with pytest.raises(UserError, match=r"^preset: expected a name, got list$"):
        dystress_text.train(LINES)
    assert f"sample 3, text: {LINES[2]!r}\n" in capsys.readouterr().out

    options["resume_from_checkpoint"] = "yes"
    assert dystress_text.train(**options, texts=LINES).record == of_list.record
    with pytest.raises(UserError, match=f"train_file was {name}, is list of 40 texts, "):
        dystress_text.train(**options, texts=LINES[::-1])
    with pytest.raises(UserError, match=r"^texts: give texts or train_file, not both"):
        dystress_text.train(**options, texts=LINES, train_file="mine.txt")


def test_an_interrupted_run_on_a_list_goes_on_with_the_same_list_alone(tmp_path):
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
