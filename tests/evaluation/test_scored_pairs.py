"""Scored pairs from tables of one's own: every format, the score against others' libraries, every
wrong row.
"""

import csv
import json
import re
from operator import itemgetter

import pytest
from fuzz_cases import inputs
from hub_server import hub_server, with_hub
from hypothesis import assume, given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

from dystress_text.errors import UserError
from dystress_text.evaluation.readers import name_of, read_scored_pairs
from dystress_text.evaluation.sts import score_vectors

ROWS = [
    ("the cat sat", "the dog ran", 0.5), ('a man, "old"', "a  woman\nswam", -2.0),
    ("the bird flew", "a bird flew", 3.0), ("café 3", "007", 2.25), ("a child saw a fish", "the child ate", 1.0),
]  # fmt: skip
HEAD = ("sentence1", "sentence2", "score")


def write(folder, kind, head=HEAD, rows=ROWS, name="mine"):
    path = folder / f"{name}.{kind}"
    if kind == "jsonl":
        path.write_text(
            "".join(json.dumps(dict(zip(head, row, strict=True))) + "\n" for row in rows)
        )
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter="\t" if kind == "tsv" else ",").writerows([head, *rows])
    return str(path)


TEXTS = st.text(
    st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=12
).filter(str.strip)
SCORES = st.floats(-1e6, 1e6, allow_subnormal=False)


@inputs(60)
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS, SCORES), min_size=2, max_size=5, unique_by=itemgetter(2)),
    order=st.permutations([*HEAD, "id"]),
    kind=st.sampled_from(["csv", "jsonl"]),
)
def test_columns_are_found_by_name_and_the_range_from_the_scores(
    tmp_path_factory, rows, order, kind
):
    cells = [dict(zip((*HEAD, "id"), (*row, i), strict=True)) for i, row in enumerate(rows)]
    values = [tuple(row[name] for name in order) for row in cells]
    pairs = read_scored_pairs(write(tmp_path_factory.mktemp("pairs"), kind, order, values))
    expected = [(" ".join(a.split()), " ".join(b.split()), score) for a, b, score in rows]
    assert list(zip(pairs.first, pairs.second, pairs.scores, strict=True)) == expected
    scores = [row[2] for row in rows]
    assert pairs.positive_above == pytest.approx(min(scores) + 0.8 * (max(scores) - min(scores)))


@inputs(60)
@given(
    st.lists(st.sampled_from([*HEAD, "id", "3", "a b", "7.5"]), min_size=2, max_size=7, unique=True)
)
def test_columns_that_are_missing_are_one_line_that_names_them(tmp_path_factory, names):
    assume(not set(HEAD) <= set(names))
    file = write(tmp_path_factory.mktemp("pairs"), "csv", names, [range(len(names))] * 3)
    found = re.escape(", ".join(names))
    expected = f"expected the columns sentence1, sentence2, score; found {found}"
    with pytest.raises(UserError, match=rf"^eval_file: .*: {expected}\Z"):
        read_scored_pairs(file)


def test_the_score_is_sentence_transformers(tmp_path, tiny_bert):
    pairs = read_scored_pairs(write(tmp_path, "csv"))
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    result = score_vectors(pairs, model.encode(pairs.sentences, convert_to_tensor=True))
    theirs = EmbeddingSimilarityEvaluator(
        list(pairs.first),
        list(pairs.second),
        pairs.scores.tolist(),
        main_similarity="cosine",
        write_csv=False,
    )
    assert result.spearman / 100 == pytest.approx(theirs(model)["spearman_cosine"], abs=1e-6)
    alike = [
        model.similarity(*model.encode([pairs.first[i], pairs.second[i]])).item() for i in (2, 3)
    ]
    assert result.alignment == pytest.approx(
        2 - sum(alike), abs=1e-5
    )  # of those above 2 of -2 to 3


FIRST = b"sentence1,sentence2,score\na cat,a dog,1\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("mine.csv", FIRST + b"a cat, ,2\n", "row 2 .*: sentence2 is not a text"),
        ("mine.csv", FIRST + b"a cat,a bird,nan\n", "row 2 .*: the score is not a finite number"),
        ("mine.csv", FIRST + b"a cat,a bird,1\n", "the 2 pairs .*no two different scores"),
        ("mine.csv", b"a cat,a dog,1\nx,y,2\n", "found a cat, a dog, 1"),
        ("mine.txt", b"a\n", "no table"),
        ("!!.csv", FIRST + b"x,y,2\n", "no letter or digit"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_its_row(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        read_scored_pairs(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_names_in_metrics():
    assert name_of("a/b c/My Pairs-2.csv") == "my_pairs_2"
    assert name_of("owner/Their-Set") == name_of("owner/Their-Set:test") == "their_set"
    assert name_of("数据.tsv") == "数据"


def test_a_data_set_of_the_hub(tmp_path, monkeypatch):
    splits = {}
    for split, rows in (("train", ROWS[:2]), ("validation", ROWS), ("test", ROWS[1:])):
        with open(write(tmp_path, "jsonl", rows=rows, name=split), "rb") as file:
            splits[f"data/{split}.jsonl"] = file.read()
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files["someone/pairs"] = splits
        monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
        assert [
            len(read_scored_pairs(name)) for name in ("someone/pairs", "someone/pairs:test")
        ] == [5, 4]
        with pytest.raises(UserError, match=r"eval_file: .*cannot read 'someone/pairs'.*nope"):
            read_scored_pairs("someone/pairs:nope")
