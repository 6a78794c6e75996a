"""Which columns of a table are read, what a run prints of its samples, and texts from Python."""

import hashlib
import json
import tempfile
from collections import deque

import datasets
import pandas as pd
import pytest
from conftest import make_sentences
from hypothesis import given
from hypothesis import strategies as st
from trainer_cases import interrupt

import dystress_text
from dystress_text.errors import ParameterError, UserError
from dystress_text.finetuning.settings import FineTuningSettings, TextSettings
from dystress_text.finetuning.texts import (
    default_columns,
    first_samples,
    table_text,
    training_text,
    with_texts,
)
from dystress_text.io.tables import python_table

LINES = make_sentences(40)


@pytest.mark.parametrize(
    ("columns", "supervised", "read"),
    [
        ("x", False, "x"),
        ("label text", False, "text"),
        ("sent0 sent1 hard_neg", False, ""),
        ("sent0 sent1 hard_neg", True, "sent0 sent1 hard_neg"),
        ("id negative_2 anchor positive negative_1", True, "anchor positive negative_2 negative_1"),
    ],
)
def test_default_columns(columns, supervised, read):
    assert default_columns(columns.split(), supervised) == read.split()


def sentences_of(text):
    return list(text.sentences())


@pytest.mark.parametrize("cell", [" \u200b", "a\0b", "x" * 65_537, None, 3, "\ud800"])
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
    lines = "".join(f"{text}\n" for text in texts)
    assert read.checksum() == hashlib.sha256(lines.encode()).hexdigest()
    assert set(sentences_of(read)) <= set(texts)


@pytest.mark.parametrize("iterable", [iter, dict, deque, lambda rows: dict(rows).items()])
def test_an_iterable_is_read_once_like_a_list(iterable):
    rows = list(zip(LINES[:20], LINES[20:], strict=True))
    given = iterable(rows)
    if isinstance(given, dict):
        rows = list(given)
    settings, read = with_texts(FineTuningSettings.of({}), given)
    expected, listed = with_texts(FineTuningSettings.of({}), rows)
    assert settings == expected
    assert sentences_of(read) == sentences_of(read) == sentences_of(listed)


def test_columns_of_a_data_set():
    data = datasets.Dataset.from_dict({"id": [1, 2, 3], "text": ["a", None, "c"]}).select([2, 1])
    assert sentences_of(with_texts(FineTuningSettings.of({}), data)[1]) == ["c"]
    pairs = datasets.Dataset.from_dict({"positive": ["b"], "score": [1.5], "anchor": ["a"]})
    settings = FineTuningSettings.of({"supervised": True})
    assert sentences_of(with_texts(settings, pairs)[1]) == ["a", "b"]
    with pytest.raises(ParameterError, match=r"^text_columns: "):
        with_texts(FineTuningSettings.of({}), pairs)


def upper(batch):
    return {"text": [text.upper() for text in batch["body"]]}


@pytest.mark.parametrize(
    ("formatted", "expected"),
    [
        (lambda data: data.with_transform(upper), ["ONE", "TWO"]),
        (lambda data: data.with_transform(upper, columns=["body"]), ["ONE", "TWO"]),
        (lambda data: data.with_format("numpy"), ["a", "b"]),
        (lambda data: data.with_format(None, columns=["body"]), ["one", "two"]),
    ],
)
def test_the_format_of_a_data_set_counts(formatted, expected):
    """As ``data[i]`` shows it to its user."""
    data = formatted(datasets.Dataset.from_dict({"text": ["a", "b"], "body": ["one", "two"]}))
    assert sentences_of(with_texts(FineTuningSettings.of({}), data)[1]) == expected


def test_columns_are_joined_and_files_concatenated(tmp_path):
    rows = [("Printer", "It is on fire."), ("Printer", ""), ("", "No body"), ("", "")]
    frame = pd.DataFrame([*rows, rows[0]], columns=["subject", "body"])
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.csv")]
    frame[:2].to_json(files[0], orient="records", lines=True)
    frame[2:].to_csv(files[1], index=False)
    joined = (frame["subject"] + " " + frame["body"]).str.strip()
    expected = [each for each in joined if each]
    text = training_text(TextSettings(train_file=files, text_columns=["subject", "body"]))
    report = text.report()
    assert [sentence for _, sentence in text.read(report)] == expected
    assert (report.sentences, report.empty) == (4, 1)
    assert first_samples(text)[0] == f"sample 1, subject + body: {joined[0]!r}"


def test_files_of_a_pattern_are_concatenated_without_byte_order_marks(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffone\ntwo")
    (tmp_path / "b.txt").write_text("\ufeffthree\n")
    text = training_text(TextSettings(train_file=[str(tmp_path / "*.txt")]))
    assert sentences_of(text) == ["one", "two", "three"]
    with pytest.raises(ParameterError, match="train_file"):
        training_text(TextSettings(train_file=[str(tmp_path / "*.csv")]))


@pytest.mark.parametrize("other", ["a.txt", "b.csv"])
def test_files_with_other_columns_are_not_concatenated(other, tmp_path):
    (tmp_path / "a.csv").write_text("text\none\n")
    (tmp_path / "b.csv").write_text("sentence\ntwo\n")
    (tmp_path / "a.txt").write_text("three\n")
    files = [str(tmp_path / name) for name in ("a.csv", other)]
    with pytest.raises(ParameterError, match=r"^train_file: "):
        training_text(TextSettings(train_file=files))


SECRET = "secret"


@pytest.mark.parametrize(
    "texts",
    [
        [],
        SECRET,
        [SECRET, 3.5],
        pd.Series([SECRET, None]),
        [(SECRET,)],
        [(SECRET, "b"), (SECRET,)],
        pd.DataFrame({"text": [SECRET]}),
    ],
)
def test_errors_of_lists_do_not_show_the_data(texts):
    with pytest.raises(ParameterError, match=r"^texts: ") as caught:
        dystress_text.train("small", texts=texts)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("views", ["dropout", "crop"])
def test_texts_in_memory_are_written_nowhere(views, tmp_path, tiny_bert, monkeypatch):
    monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    options = {"model_name_or_path": tiny_bert, "eval_set": "none", "max_steps": 1, "views": views}
    dystress_text.train(**options, texts=LINES, train_batch_size=8, output_dir=tmp_path / "out")
    assert not (tmp_path / "cache").exists()
    assert list((tmp_path / "temporary").iterdir()) == []


def weights_of(run):
    return (run.folder / "model.safetensors").read_bytes()


def test_a_list_trains_like_a_file_and_is_resumed(tmp_path, tiny_bert):
    options = {"model_name_or_path": tiny_bert, "eval_set": "none", "train_batch_size": 8}
    options |= {"max_steps": 4, "save_steps": 2, "keep_checkpoints": True}
    file = tmp_path / "mine.txt"
    file.write_text("".join(f"{line}\n" for line in LINES))
    of_file = dystress_text.train(**options, train_file=file, output_dir=tmp_path / "file")
    options["output_dir"] = tmp_path / "list"
    of_list = dystress_text.train(**options, texts=LINES)
    assert weights_of(of_list) == weights_of(of_file)
    checksum = hashlib.sha256(file.read_bytes()).hexdigest()
    assert of_list.record.corpus["sha256"] == of_file.record.corpus["sha256"] == checksum
    name = f"list of 40 texts, sha256 {checksum[:16]}"
    assert of_list.record.settings["train_file"] == name

    options["resume_from_checkpoint"] = "yes"
    assert dystress_text.train(**options, texts=LINES).record == of_list.record
    interrupt(of_list.folder)
    with pytest.raises(UserError, match="data"):
        dystress_text.train(**options, texts=LINES[::-1])
    again = dystress_text.train(**options, texts=LINES)
    assert weights_of(again) == weights_of(of_file)
