"""Scored pairs from files that were spoiled: pairs that can be scored, or one line of ours."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz_cases import accepted, deep, inputs, spoiled, spoiled_lines
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.evaluation.scored_pairs import read_scored_pairs

HEAD = ("sentence1", "sentence2", "score")
ROWS = [("the cat sat", 'a "dog"', 1.5), ("rain again", "no é", 0), ("x", "y", -3), ("a line", "a line", 5.0)]
SEPARATORS = {".csv": b",", ".tsv": b"\t", ".jsonl": b", ", ".json": b", "}


def table(suffix):
    rows = [dict(zip(HEAD, row, strict=True)) for row in ROWS]
    if suffix == ".parquet":
        file = io.BytesIO()
        pq.write_table(pa.table({name: [row[name] for row in rows] for name in HEAD}), file)
        return file.getvalue()
    if suffix == ".json":
        return json.dumps(rows).encode()
    if suffix == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    separator = SEPARATORS[suffix].decode()
    return "".join(separator.join(map(str, row)).replace('"', "") + "\n" for row in [HEAD, *ROWS]).encode()


def read(folder, suffix, content, limits=None):
    file = folder / f"pairs{suffix}"
    file.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYSTRESS_CACHE", str(folder / "cache"))
        pairs = accepted(read_scored_pairs, str(file), None, limits)
    if pairs is not None:
        assert len(pairs) == len(pairs.first) == len(pairs.second) > 1
        assert np.isfinite(pairs.scores).all()
        assert pairs.scores.min() < pairs.scores.max()
        assert all(sentence.strip() and sentence.encode() for sentence in pairs.sentences)
    return pairs


def spoiled_tables(suffix, count):
    @inputs(count)
    @given(st.data())
    def run(tmp_path_factory, data):
        kinds = [spoiled(table(suffix))]
        if suffix in SEPARATORS:
            kinds += [spoiled_lines(table(suffix), SEPARATORS[suffix]), st.binary(max_size=60)]
        read(
            tmp_path_factory.mktemp("pairs"), suffix, data.draw(st.one_of(kinds)),
            data.draw(st.sampled_from((None, (-5.0, 5.0)))),
        )  # fmt: skip

    return run


test_csv = spoiled_tables(".csv", 200)
test_tsv = spoiled_tables(".tsv", 100)
test_jsonl = spoiled_tables(".jsonl", 200)
test_json = spoiled_tables(".json", 100)
test_parquet = spoiled_tables(".parquet", 30)


@pytest.mark.parametrize("suffix", [*SEPARATORS, ".parquet"])
def test_the_file_before_it_is_spoiled(tmp_path, suffix):
    assert read(tmp_path, suffix, table(suffix)) is not None


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json"])
def test_content_that_goes_too_far(tmp_path, suffix):
    for text in (deep(), "9" * 10**5, '"' * 10**5, "\n" * 10**5, "{" * 10**5, "\ufeff", "\0"):
        assert read(tmp_path, suffix, text.encode()) is None
