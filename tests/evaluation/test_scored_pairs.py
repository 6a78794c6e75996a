"""Scored pairs from the user's tables."""

import csv
import json

import pandas as pd
import pytest
from hub_server import hub_server, with_hub
from model_cases import build_static

from dystress_text import evaluate
from dystress_text.errors import ParameterError, UserError
from dystress_text.evaluation.text_sets import pairs_from, read_scored_pairs

ROWS = [
    ("the cat sat", "the dog ran", 0.5),
    ('a man, "old"', "a  woman\nswam", -2.0),
    ("the bird flew", "a bird flew", 3.0),
    ("café 3", "007", 2.25),
    ("a child saw a fish", "the child ate", 1.0),
]
HEADER = ("sentence1", "sentence2", "score")


def jsonl(rows):
    """Return rows as lines of JSON, with a further column and the columns in another order."""
    lines = []
    for first, second, score in rows:
        row = {"id": 1, "score": score, "sentence2": second, "sentence1": first}
        lines.append(json.dumps(row))
    return "\n".join(lines)


@pytest.fixture
def files(tmp_path):
    """The rows as .csv and as .jsonl."""
    with (tmp_path / "My Pairs-2.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *ROWS])
    (tmp_path / "mine.jsonl").write_text(jsonl(ROWS))
    return [str(tmp_path / name) for name in ("My Pairs-2.csv", "mine.jsonl")]


def test_columns_are_found_by_name(files):
    for file, name in zip(files, ("my_pairs_2", "mine"), strict=True):
        pairs = read_scored_pairs(file)
        assert pairs.metric("spearman").name == f"{name}_spearman"
        assert pairs.first == tuple(row[0] for row in ROWS)
        assert pairs.second == tuple(row[1] for row in ROWS)
        assert pairs.scores.tolist() == [row[2] for row in ROWS]
        assert pairs.positive_above == pytest.approx(2)  # the top fifth of -2 to 3


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_byte_order_mark_is_no_text(tmp_path, ending):
    separator = {"csv": ",", "tsv": "\t"}.get(ending)
    text = jsonl(ROWS[2:])
    if separator:
        text = "\n".join(separator.join(map(str, row)) for row in [HEADER, *ROWS[2:]])
    (tmp_path / f"mine.{ending}").write_text(f"\ufeff{text}", encoding="utf-8")
    pairs = read_scored_pairs(str(tmp_path / f"mine.{ending}"))
    assert pairs.first == tuple(row[0] for row in ROWS[2:])


def test_a_text_is_not_a_row():
    """Each has three characters, which could be two texts and a score."""
    with pytest.raises(UserError, match=r"^pairs: "):
        pairs_from(pd.Series(["ab1", "cd2"]))


FIRST = "sentence1,sentence2,score\na cat,a dog,1\n"


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("mine.csv", f"{FIRST}a cat, ,2\n", "row 2.*sentence2"),
        ("mine.csv", f"{FIRST}a cat,a bird,nan\n", "row 2.*score"),
        ("mine.csv", f"{FIRST}a cat,a bird,1\n", "scores"),
        ("mine.csv", "a cat,a dog,1\nx,y,2\n", "sentence1, sentence2, score"),
        ("mine.txt", "a\n", "mine.txt"),
    ],
)
def test_wrong_files_are_refused(tmp_path, name, content, named):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=f"^pairs: .*{named}"):
        read_scored_pairs(str(tmp_path / name))


def test_data_set_of_the_hub(tmp_path, monkeypatch):
    splits = {"data/validation.jsonl": ROWS, "data/test.jsonl": ROWS[1:]}
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["someone/pairs"] = {name: jsonl(rows).encode() for name, rows in splits.items()}
        monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
        assert len(read_scored_pairs("someone/pairs")) == 5
        assert len(read_scored_pairs("someone/pairs:test")) == 4
        with pytest.raises(UserError, match=r"^pairs: .*someone/pairs"):
            read_scored_pairs("someone/pairs:nope")


@pytest.mark.parametrize("where", ["pairs", "queries", "documents"])
def test_half_a_surrogate_pair_is_one_line(where):
    half = json.loads(r'"half \ud83d"')
    pairs = [(half, "b", 1.0), ("a", "b", 0.2), ("c", "d", 0.4)]
    queries = {"q": half if where == "queries" else "a cat"}
    documents = {"d": half if where == "documents" else "a dog", "e": "a bird"}
    given = {"pairs": pairs}
    if where != "pairs":
        given = {"retrieval": (queries, documents, {"q": {"d"}})}
    with pytest.raises(ParameterError, match=r"\A(pairs|retrieval): [^\n]+\Z"):
        evaluate(build_static(8), **given)
