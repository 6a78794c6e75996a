"""Scored pairs from the user's tables, against sentence-transformers' evaluator."""

import csv
import json

import pytest
from hub_server import hub_server, with_hub
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

from dystress_text.errors import UserError
from dystress_text.evaluation.readers import name_of, read_scored_pairs
from dystress_text.evaluation.sts import score_vectors

ROWS = [
    ("the cat sat", "the dog ran", 0.5),
    ('a man, "old"', "a  woman\nswam", -2.0),
    ("the bird flew", "a bird flew", 3.0),
    ("café 3", "007", 2.25),
    ("a child saw a fish", "the child ate", 1.0),
]
HEAD = ("sentence1", "sentence2", "score")


def write(folder, kind, head=HEAD, rows=ROWS, name="mine"):
    path = folder / f"{name}.{kind}"
    if kind == "jsonl":
        lines = [json.dumps(dict(zip(head, row, strict=True))) + "\n" for row in rows]
        path.write_text("".join(lines))
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows])
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_columns_are_found_by_name(tmp_path, kind):
    rows = [(score, "id", second, first) for first, second, score in ROWS]
    file = write(tmp_path, kind, ("score", "id", "sentence2", "sentence1"), rows)
    pairs = read_scored_pairs(file)
    expected = [(first, " ".join(second.split()), score) for first, second, score in ROWS]
    assert list(zip(pairs.first, pairs.second, pairs.scores, strict=True)) == expected
    assert pairs.positive_above == pytest.approx(2)  # the top fifth of -2 to 3


def test_score_is_that_of_sentence_transformers(tmp_path, tiny_bert):
    pairs = read_scored_pairs(write(tmp_path, "csv"))
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    result = score_vectors(pairs, model.encode(pairs.sentences, convert_to_tensor=True))
    theirs = EmbeddingSimilarityEvaluator(
        list(pairs.first), list(pairs.second), pairs.scores.tolist(), main_similarity="cosine"
    )
    assert result.spearman / 100 == pytest.approx(theirs(model)["spearman_cosine"], abs=1e-6)
    positive = [model.encode([pairs.first[i], pairs.second[i]]) for i in (2, 3)]
    cosines = [model.similarity(*vectors).item() for vectors in positive]
    assert result.alignment == pytest.approx(2 - sum(cosines), abs=1e-5)


FIRST = b"sentence1,sentence2,score\na cat,a dog,1\n"


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("mine.csv", FIRST + b"a cat, ,2\n", "row 2 .*sentence2"),
        ("mine.csv", FIRST + b"a cat,a bird,nan\n", "row 2 .*score"),
        ("mine.csv", FIRST + b"a cat,a bird,1\n", "scores"),
        ("mine.csv", b"a cat,a dog,1\nx,y,2\n", "sentence1, sentence2, score"),
        ("mine.txt", b"a\n", "mine.txt"),
        ("!!.csv", FIRST + b"x,y,2\n", "name"),
    ],
)
def test_wrong_files_are_refused(tmp_path, name, content, named):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"^eval_file: .*{named}"):
        read_scored_pairs(str(tmp_path / name))


def test_names_in_metrics():
    assert name_of("a/b c/My Pairs-2.csv") == "my_pairs_2"
    assert name_of("owner/Their-Set") == name_of("owner/Their-Set:test") == "their_set"
    assert name_of("数据.tsv") == "数据"


def test_data_set_of_the_hub(tmp_path, monkeypatch):
    splits = {}
    for split, rows in (("validation", ROWS), ("test", ROWS[1:])):
        with open(write(tmp_path, "jsonl", rows=rows, name=split), "rb") as file:
            splits[f"data/{split}.jsonl"] = file.read()
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["someone/pairs"] = splits
        monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
        assert len(read_scored_pairs("someone/pairs")) == 5
        assert len(read_scored_pairs("someone/pairs:test")) == 4
        with pytest.raises(UserError, match=r"^eval_file: .*someone/pairs"):
            read_scored_pairs("someone/pairs:nope")
