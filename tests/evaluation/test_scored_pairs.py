"""Scored pairs from tables of one's own: every format, the score against others' libraries, every wrong row."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import hub_server, with_hub
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

from dystress_text.errors import UserError
from dystress_text.evaluation.evaluators import read_scored_pairs, slug_of
from dystress_text.evaluation.sts import evaluate_sts

ROWS = [
    ("the cat sat", "the dog ran", 0.5), ('a man, "old"', "a  woman\nswam", -2.0),
    ("the bird flew", "a bird flew", 3.0), ("café 3", "007", 2.25), ("a child saw a fish", "the child ate", 1.0),
]  # fmt: skip
HEAD = ("sentence1", "sentence2", "score")


def write(folder, kind, head=HEAD, rows=ROWS, name="mine"):
    path = folder / f"{name}.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({key: [row[i] for row in rows] for i, key in enumerate(head)}), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(dict(zip(head, row, strict=True))) + "\n\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps([dict(zip(head, row, strict=True)) for row in rows], indent=1))
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if kind == "tsv" else ",")
            writer.writerows([head, *rows])
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_every_format_gives_the_same_pairs(tmp_path, kind):
    pairs = read_scored_pairs(write(tmp_path, kind))
    assert pairs.first == ("the cat sat", 'a man, "old"', "the bird flew", "café 3", "a child saw a fish")
    assert pairs.second == ("the dog ran", "a woman swam", "a bird flew", "007", "the child ate")
    assert pairs.scores.tolist() == [row[2] for row in ROWS]
    assert (pairs.name, pairs.slug) == ("mine", "mine")


def test_columns_by_name_and_by_place(tmp_path):
    expected = read_scored_pairs(write(tmp_path, "csv"))
    wider = [(i, row[2], row[1], row[0]) for i, row in enumerate(ROWS)]
    by_standard = write(tmp_path, "csv", ("id", "score", "sentence2", "sentence1"), wider, "a")
    by_name = write(tmp_path, "csv", ("id", "gold", "b", "a"), wider, "b")
    by_place = write(tmp_path, "csv", ("premise", "hypothesis", "label"), ROWS, "c")
    for found in map(read_scored_pairs, (by_standard, by_name, by_place), (None, ["a", "b", "gold"], None)):
        assert (found.first, found.second) == (expected.first, expected.second)
        assert found.scores.tolist() == expected.scores.tolist()


def test_the_score_is_sentence_transformers(tmp_path, tiny_bert):
    pairs = read_scored_pairs(write(tmp_path, "csv"))
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    result = evaluate_sts(pairs, lambda s: model.encode(list(s), convert_to_tensor=True))
    theirs = EmbeddingSimilarityEvaluator(
        list(pairs.first), list(pairs.second), pairs.scores.tolist(), main_similarity="cosine", write_csv=False
    )
    assert result.spearman / 100 == pytest.approx(theirs(model)["spearman_cosine"], abs=1e-6)
    alike = [model.similarity(*model.encode([pairs.first[i], pairs.second[i]])).item() for i in (2, 3)]
    assert result.alignment == pytest.approx(2 - sum(alike), abs=1e-5)  # of those above 2 of -2 to 3


FIRST = b"sentence1,sentence2,score\na cat,a dog,1\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("mine.csv", FIRST + b"a cat, ,2\n", "row 2 .*' ' is not a text"),
        ("mine.csv", FIRST + b"a cat,a bird,nan\n", "row 2 .*'nan' is not a finite number"),
        ("mine.csv", FIRST + b"a cat,a bird,2,\n", "line 3 .*3 cells but 4"),
        ("mine.csv", FIRST + b"a cat,a bird,1\n", "the 2 pairs .*no two different scores"),
        ("mine.csv", b"a,b\n1,2\n", "eval_columns: .*has the columns a, b; name"),
        ("mine.csv", b"a cat,a dog,1.5\nx,y,2\n", "no header: its first row has the score '1.5'"),
        ("mine.parquet", b"PAR1", "cannot read"),
        ("mine.txt", b"a\n", "no table"),
        ("!!.csv", b"a,b,c\nx,y,2\nx,z,1\n", "no letter or digit"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_its_row(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        read_scored_pairs(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_score_outside_its_range_is_named(tmp_path):
    file = write(tmp_path, "csv")
    assert len(read_scored_pairs(file, None, (-2, 3))) == 5
    with pytest.raises(UserError, match=r"eval_score_range: row 2 of .* has the score -2, outside 0 to 5"):
        read_scored_pairs(file, None, (0, 5))
    with pytest.raises(UserError, match=r"eval_columns: .* has the columns sentence1, sentence2, score, not .*gold"):
        read_scored_pairs(file, ["sentence1", "sentence2", "gold"])


def test_names_in_metrics():
    assert slug_of("a/b c/My Pairs-2.csv") == "my_pairs_2"
    assert slug_of("owner/Their-Set") == slug_of("owner/Their-Set:test") == "their_set"
    assert slug_of("数据.tsv") == "数据"


def test_a_data_set_of_the_hub(tmp_path, monkeypatch):
    splits = {}
    for split, rows in (("train", ROWS[:2]), ("validation", ROWS), ("test", ROWS[1:])):
        with open(write(tmp_path, "jsonl", rows=rows, name=split), "rb") as file:
            splits[f"data/{split}.jsonl"] = file.read()
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["someone/pairs"] = splits
        monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
        assert [len(read_scored_pairs(name)) for name in ("someone/pairs", "someone/pairs:test")] == [5, 4]
        with pytest.raises(UserError, match=r"eval_file: .*cannot read 'someone/pairs'.*nope"):
            read_scored_pairs("someone/pairs:nope")
