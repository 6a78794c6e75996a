"""Which columns of a table are sentences, and in which order they come."""

import csv
import hashlib
import json
import uuid

import pytest

from dystress_text.errors import UserError
from dystress_text.files.text_lines import CorpusReport
from dystress_text.simcse.texts import column_of_table, rows_of_table

WORDS = (
    "ran",
    "sat",
    "slept",
    "jumped",
    "saw",
    "fell",
    "sang",
    "left",
    "stayed",
    "spoke",
    "read",
    "wrote",
)
PAIRS = [(f"The {a} cat {b}.", f"A cat that {b} was {a}.") for a in ("old", "big") for b in WORDS]
NO_SENTENCES = {
    "labels": ["entailment", "neutral", "contradiction"], "answers": ["yes", "No"], "truth": ["True", "False"],
    "phrases": ["not similar", "similar"], "languages": ["en", "de-AT"], "Chinese": ["正面", "负面"],
    "source": ["Wikipedia"], "long source": ["Stanford Natural Language Inference, version 1"],
    "address": ["https://example.com/data"], "addresses": [f"www.example.com/how/{word}" for word in WORDS],
    "ids": [f"doc_{i}" for i in range(24)], "uuids": [str(uuid.UUID(int=i << 99 | i)) for i in range(24)],
    "hashes": [hashlib.sha1(bytes([i])).hexdigest() for i in range(24)], "files": [f"img/{word}.jpg" for word in WORDS],
    "dates": [f"2020-01-{i:02}" for i in range(1, 25)], "times": [f"2020-01-01T10:{i}:07Z" for i in range(10, 34)],
    "months": [f"Jan {i}, 2020" for i in range(1, 25)], "Chinese dates": [f"2020年1月{i}日" for i in range(1, 25)],
    "stamps": [f"Mon, 1 June 2020 10:{i} PM" for i in range(10, 34)],
    "addresses of any script": [f"https://ja.wikipedia.org/wiki/日本_{i}" for i in range(24)],
    "scores": ["4.5", "nan", "3"], "mails": [f"{word}@example.org" for word in WORDS],
}  # fmt: skip
SENTENCES = {
    "query": ["how to cook rice", "what is a cat", "python list sort"],
    "short": ["He ran.", "I see.", "Stop it!", "Go home now.", "Yes."],
    "terms": ["gravity", *WORDS, *map(str.upper, WORDS)],
    "Chinese": ["今天天气很好", "我想去北京", "2020年东京奥运会", "你好吗"], "Thai": ["ภาษาไทยง่าย", "แมวนอน"],
    "numbers": [f"number {i}" for i in range(24)], "mixed": ["see https://a.b/c", "doc_1 is here", "a_b", "It is."],
}  # fmt: skip


def table(folder, columns, kind="csv"):
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    file = folder / f"table.{kind}"
    if kind == "jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    else:
        with file.open("w", newline="") as stream:
            (writer := csv.DictWriter(stream, list(columns))).writeheader()
            writer.writerows(rows)
    return str(file)


def among_pairs(cells):
    firsts, seconds = zip(*PAIRS, strict=True)
    return {
        "premise": firsts,
        "hypothesis": seconds,
        "third": [cells[i % len(cells)] for i in range(len(PAIRS))],
    }


@pytest.mark.parametrize("kind", NO_SENTENCES)
def test_a_column_of_labels_ids_or_one_source_is_refused_unless_it_is_named(tmp_path, kind):
    file = table(tmp_path, among_pairs(NO_SENTENCES[kind]))
    with pytest.raises(
        UserError,
        match=r"^text_columns: column 'third' of .* has [^\n]+; name columns of sentences\Z",
    ):
        rows_of_table(file, None)
    assert rows_of_table(file, ["premise", "hypothesis"]).columns == 2
    if kind != "dates":  # which have no letter
        assert rows_of_table(file, ["premise", "third"]).columns == 2
    alone = table(tmp_path, {"text": among_pairs(NO_SENTENCES[kind])["third"]})
    with pytest.raises(UserError, match=r"^text_columns: column 'text' of "):
        column_of_table(alone, None)


@pytest.mark.parametrize("kind", SENTENCES)
def test_sentences_are_taken(tmp_path, kind):
    assert rows_of_table(table(tmp_path, among_pairs(SENTENCES[kind])), None).columns == 3


def test_few_rows_cannot_be_judged_and_numbers_of_json_are_named(tmp_path):
    assert rows_of_table(table(tmp_path, {"a": ["yes"] * 4, "b": ["no"] * 4}), None).columns == 2
    one_query = {"query": ["how to cook rice"] * 12, "positive": [first for first, _ in PAIRS[:12]]}
    assert rows_of_table(table(tmp_path, one_query), None).columns == 2
    with pytest.raises(
        UserError, match=r"^text_columns: column 'id' of .*name columns of sentences"
    ):
        rows_of_table(table(tmp_path, {"id": range(4), "a": "abcd", "b": "efgh"}, "jsonl"), None)
    mixed = table(tmp_path, {"a": [["x"], "y"], "b": ["z", "w"]}, "jsonl")
    with pytest.raises(
        UserError, match=r"row 1 of .*column 'a' is not a text to train on: it holds \['x'\]; name"
    ):
        list(rows_of_table(mixed, None).sentences(CorpusReport(), None))


@pytest.mark.parametrize(("names", "order"), [
    ("positive anchor", "anchor positive"), ("negative positive anchor", "anchor positive negative"),
    ("Positive source Anchor", "Anchor Positive source"), ("answer query neg_1 neg_2", "query answer neg_1 neg_2"),
    ("hard_neg sent0 sent1", "sent0 sent1 hard_neg"), ("hard_negative_1 query pos", "query pos hard_negative_1"),
    ("document search_query", "search_query document"), ("positive sentence", "sentence positive"),
    ("anchor neg source positive", "anchor positive neg source"), ("text neg positive", "text positive neg"),
    ("sent0 sent1 hard_neg more", "sent0 sent1 hard_neg more"),
])  # fmt: skip
def test_an_anchor_comes_first_and_a_negative_last(tmp_path, names, order):
    columns = {name: [f"{name} {word} and {word}" for word in WORDS] for name in names.split()}
    file = table(tmp_path, columns)
    assert rows_of_table(file, None).rows.column_names == order.split()
    assert rows_of_table(file, names.split()).rows.column_names == names.split()
