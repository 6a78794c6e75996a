"""Evaluation files that nobody thought of: every reader takes them or says in one line of ours what
is wrong.
"""

import io
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz_cases import accepted, deep, inputs, snapshot, spoiled, spoiled_lines
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.evaluation.catalogue import SUITES, StsTask
from dystress_text.evaluation.evaluators import read_scored_pairs

PAIR = "a cat sat\ta dog ran"
TASKS = {
    task.name: task for groups in SUITES.values() for tasks in groups.values() for task in tasks
}
ROWS = {
    "STS-B": [f"main\tx\t2026\t{i}\t{i}.5\t{PAIR}" for i in range(4)],
    "SICK-R": [
        "pair_ID\ta\tb\tscore\tjudgment",
        *(f"{i}\t{PAIR}\t{i}.5\tNEUTRAL" for i in range(1, 5)),
    ],
    "MRPC": [
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        *(f"{i % 2}\t{i}\t{i}\t{PAIR}" for i in range(4)),
    ],
    "TREC": ["NUM:date When ?", "ABBR:exp What is it ?"] * 2,
    "SST2": ["a fine film\t1", "bad\t0"] * 2,
    "MR": ["one text", "another text, longer", "caf\xe9"],
}


def content_of(task, file):
    """A small valid file of a task."""
    if "STS.gs" in file or "STS.input" in file:
        rows = ["3.2", "", "5", "0.4"] if "STS.gs" in file else [PAIR] * 4
    else:
        same = {"MiniSTS": "STS-B", "MiniParaphrase": "MRPC", "MiniQuestions": "TREC"}
        rows = ROWS.get(same.get(task.name, task.name), ROWS["MR"])
    return ("\n".join(rows) + "\n").encode("latin-1")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """For each task a folder with a few rows, and the task with their counts."""
    found = {}
    for name, task in TASKS.items():
        folder = tmp_path_factory.mktemp("task")
        for file in task.files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content_of(task, file))
        loaded = task.load(folder)
        parts = {part: (len(loaded[part]), *files) for part, (_, *files) in task.parts.items()}
        found[name] = folder, replace(task, parts=parts)
    return found


@inputs(400)
@given(st.sampled_from(sorted(TASKS)), st.data())
def test_files_of_every_task(places, name, data):
    folder, task = places[name]
    file = folder / data.draw(st.sampled_from(task.files))
    valid = file.read_bytes()
    odd = st.sampled_from((b"", b"\n", b"\xff", b"\t\t\t\t\t\t\t", b"\0" * 100, b"\xff\xfea\0"))
    file.write_bytes(
        data.draw(st.one_of(spoiled(valid), spoiled_lines(valid), st.binary(max_size=80), odd))
    )
    before = snapshot(folder)
    for read in (accepted(task.read, folder), accepted(task.load, folder)):
        for split in (read or {}).values():
            rows = split.scores if isinstance(task, StsTask) else split.labels
            columns = (split.first, split.second) if isinstance(task, StsTask) else split.columns
            assert np.isfinite(rows).all()
            assert all(len(column) == len(rows) for column in columns)
            assert all(text.encode() or not text for column in columns for text in column)
    assert snapshot(folder) == before
    file.unlink()
    assert accepted(task.read, folder) is None
    file.write_bytes(valid)
    assert task.read(folder)


PAIRS = [
    ("the  cat sat", "a dog", 1.5),
    ("rain again", "no é", 0.0),
    ("007", "y", -3.0),
    ("a line", "a line", 5.0),
]
SEPARATORS = {".csv": b",", ".tsv": b"\t", ".jsonl": b", ", ".parquet": b"\0"}


def table(suffix):
    head = ("sentence1", "sentence2", "score")
    rows = [dict(zip(head, row, strict=True)) for row in PAIRS]
    if suffix == ".parquet":
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), file)
        return file.getvalue()
    if suffix == ".jsonl":
        return "\n".join(map(json.dumps, rows)).encode()
    return "".join(
        SEPARATORS[suffix].decode().join(map(str, row)) + "\n" for row in [head, *PAIRS]
    ).encode()


@pytest.mark.parametrize(("suffix", "count"), zip(SEPARATORS, (150, 50, 40, 20), strict=True))
def test_scored_pairs(tmp_path, monkeypatch, suffix, count):
    monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
    file, valid = tmp_path / f"pairs{suffix}", table(suffix)
    file.write_bytes(valid)
    pairs = read_scored_pairs(str(file))
    read = zip(pairs.first, pairs.second, pairs.scores, strict=True)
    assert list(read) == [("the cat sat", *PAIRS[0][1:]), *PAIRS[1:]]
    far = [
        text.encode()
        for text in (deep(), "9" * 10**5, '"' * 10**5, "\n" * 10**5, "{" * 10**5, "\ufeff", "\0")
    ]

    lines = spoiled_lines(valid, SEPARATORS[suffix])

    @inputs(count)
    @given(st.one_of(spoiled(valid), lines, st.binary(max_size=60), st.sampled_from(far)))
    def check(content):
        file.write_bytes(content)
        pairs = accepted(read_scored_pairs, str(file))
        if pairs is not None:
            assert len(pairs) == len(pairs.first) == len(pairs.second) > 1
            assert np.isfinite(pairs.scores).all()
            assert pairs.scores.min() < pairs.scores.max()
            assert all(sentence.strip() and sentence.encode() for sentence in pairs.sentences)

    check()
