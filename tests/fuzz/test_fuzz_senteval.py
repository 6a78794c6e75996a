"""Evaluation files that nobody thought of: every reader takes them or says in one line of ours what is wrong."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from fuzz_cases import ODD_BYTES, accepted, deep, inputs, snapshot, spoiled, spoiled_lines, spoiled_value
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.catalogue import STS_TASKS, SUITES, StsTask, checksums, eval_pairs
from dystress_text.evaluation.embedder import EncodedOnce
from dystress_text.evaluation.readers import StsPairs
from dystress_text.evaluation.sts import spearman
from dystress_text.files.image_sets import TRAIN_INDICES
from dystress_text.files.long_tail import read_long_tail, write_long_tail
from dystress_text.files.places import EMBEDDED
from dystress_text.files.prepared_data import MANIFEST, Manifest, read_manifest, variant_of, write_manifest
from dystress_text.files.whole import FileRecord
from dystress_text.simcse.objective import temperature_of

PAIR = "a cat sat\ta dog ran"
CLASSES = {"TREC": ("NUM:date When ?", "ABBR:exp What is it ?"), "SST2": ("a fine film\t1", "bad\t0")}
HEADERS = {"MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "SICK-R": "pair_ID\ta\tb\tscore\tjudgment"}
TASKS = {task.name: task for groups in SUITES.values() for tasks in groups.values() for task in tasks}


def content_of(task, file):
    """A small valid file of a task."""
    if isinstance(task, StsTask) and "STS.gs" in file:
        rows = ["3.2", "", "5", "0.4"]
    elif isinstance(task, StsTask) and "STS.input" in file:
        rows = [PAIR] * 4
    elif task.name in ("STS-B", "MiniSTS"):
        rows = [f"main\tx\t2026\t{i}\t{i}.5\t{PAIR}" for i in range(4)]
    elif task.name == "SICK-R":
        rows = [HEADERS["SICK-R"], *(f"{i}\t{PAIR}\t{i}.5\tNEUTRAL" for i in range(1, 5))]
    elif task.name in ("MRPC", "MiniParaphrase"):
        rows = [HEADERS["MRPC"], *(f"{i % 2}\t{i}\t{i}\t{PAIR}" for i in range(4))]
    elif task.name in ("TREC", "MiniQuestions"):
        rows = [*CLASSES["TREC"]] * 2
    elif task.name == "SST2":
        rows = [*CLASSES["SST2"]] * 2
    else:
        rows = ["one text", "another text, longer", "caf\xe9"]
    return ("\n".join(rows) + "\n").encode("latin-1" if task.name in ("TREC", "MR") else "utf-8")


def tiny(task, folder):
    """The task's files with a few lines, and the task with their counts."""
    for file in task.files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content_of(task, file))
    if isinstance(task, StsTask):
        return replace(task, count=sum(len(pairs) for pairs in task.reader(folder).values()))
    return replace(task, counts={name: len(split) for name, split in task.reader(folder).items()})


def check(read):
    for split in read.values():
        columns = (split.first, split.second) if isinstance(split, StsPairs) else split.columns
        rows = split.scores if isinstance(split, StsPairs) else split.labels
        assert all(len(column) == len(rows) for column in columns)
        assert np.isfinite(rows).all()
        for column in columns:
            for text in column:
                text.encode()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder and a task with few rows for each task."""
    found = {}
    for name, task in TASKS.items():
        folder = tmp_path_factory.mktemp("task")
        found[name] = folder, tiny(task, folder)
    return found


@inputs(700)
@given(st.sampled_from(sorted(TASKS)), st.data())
def test_files_of_every_task(places, name, data):
    folder, task = places[name]
    file = data.draw(st.sampled_from(task.files))
    valid = (folder / file).read_bytes()
    content = data.draw(st.one_of(spoiled(valid), spoiled_lines(valid), st.binary(max_size=80)))
    (folder / file).write_bytes(content)
    try:
        read = accepted(task.read, folder)
        if read is not None:
            check(read)
            assert set(checksums(task, folder)) == set(task.files)
        other = accepted(task.reader, folder)
        if other is not None:
            check(other)
    finally:
        (folder / file).write_bytes(valid)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_file_of_nothing_else(name, places):
    folder, task = places[name]
    odd = (b"", b"\n", b"\n\n\n\n", b"\xff", b"\t\t\t\t\t\t\t", b"\0" * 100, b"\xff\xfea\0")
    for file, content in product(task.files[:3], odd):
        valid = (folder / file).read_bytes()
        (folder / file).write_bytes(content)
        assert accepted(task.read, folder) is None, content
        (folder / file).write_bytes(valid)
    assert task.read(folder)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_file_that_is_none(name, places):
    folder, task = places[name]
    file = folder / task.files[-1]
    valid = file.read_bytes()
    file.unlink()
    try:
        for make in (lambda: None, file.mkdir, lambda: (file.rmdir(), file.symlink_to(file))):
            make()
            with pytest.raises(DataError, match=file.name.replace(".", r"\.")):
                task.read(folder)
    finally:
        file.unlink()
        file.write_bytes(valid)


@inputs(150)
@given(spoiled_lines((EMBEDDED / "senteval/STS/MiniSTS/mini-sts.csv").read_bytes()))
def test_the_dev_set_of_training(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "data"
    file = folder / "senteval/STS/STSBenchmark/sts-dev.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    pairs = accepted(eval_pairs, "stsb_dev", folder)
    if pairs is not None:
        check({"dev": pairs})


@inputs(200)
@given(st.lists(st.one_of(st.floats(), st.sampled_from((0.0, 5.0, 1e308))), min_size=2, max_size=8))
def test_scores_of_any_size(scores):
    value = spearman(np.array(scores), np.arange(len(scores), dtype=float))
    assert np.isnan(value) or abs(value) <= 100.0001


# ---- records beside the data -----------------------------------------------------------------------------------------

RECORD = Manifest(
    "senteval", "hub", "a copy", {"STS/x.txt": FileRecord(3, "0" * 64)}, {"MR": "missing"}, {"test": 5}, "images"
)


@inputs(300)
@given(st.data())
def test_records_of_prepared_data(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "prepared"
    folder.mkdir(exist_ok=True)
    write_manifest(folder, RECORD)
    file = folder / MANIFEST
    if data.draw(st.booleans()):
        file.write_text(json.dumps(data.draw(spoiled_value(json.loads(file.read_text())))))
    else:
        file.write_bytes(data.draw(spoiled(file.read_bytes())))
    found = accepted(read_manifest, folder)
    if found is not None:
        assert found.folder is None or isinstance(found.folder, str)
        assert found.variant is None or isinstance(found.variant, str)
    accepted(variant_of, folder / "x" / "y.txt")


def test_a_record_that_is_nested_deeper_than_the_stack(tmp_path):
    (tmp_path / MANIFEST).write_text(deep())
    with pytest.raises(DataError, match="damaged"):
        read_manifest(tmp_path)


LABELS = np.repeat(np.arange(4), 20)


@inputs(300)
@given(st.data())
def test_indices_of_a_long_tail(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / TRAIN_INDICES
    write_long_tail(file, "cifar10", LABELS, 0.1, 0)
    file.write_bytes(data.draw(st.one_of(spoiled(file.read_bytes()), spoiled_lines(file.read_bytes(), b" "))))
    found = accepted(read_long_tail, file, LABELS)
    if found is not None:
        assert len(found) < len(LABELS)


SETTINGS = {
    "objective": "infonce", "temperature": None, "temp": None, "tau_min": 0.05, "tau_max": 0.07, "shift": None,
    "scale": None, "sharpness": None, "half_period": None, "unit": None, "tau_0": None, "alpha": None, "a_0": None,
    "sigma": None, "detach_temperature": True,
}  # fmt: skip


@inputs(400)
@given(st.data())
def test_the_record_of_the_run_that_made_a_model(tmp_path_factory, data):
    """It says what temperature to draw."""
    folder = tmp_path_factory.getbasetemp() / "model"
    folder.mkdir(exist_ok=True)
    record = {"program": "dystress_text/train.py", "settings": SETTINGS}
    valid = json.dumps(record)
    spoilt = spoiled_value(record).map(json.dumps)
    content = data.draw(st.one_of(spoilt, spoilt, spoiled(valid.encode()).map(lambda b: b.decode("latin-1"))))
    (folder / "run.json").write_text(content, encoding="latin-1")
    accepted(temperature_of, str(folder))


def test_a_run_record_that_is_nested_deeper_than_the_stack(tmp_path):
    (tmp_path / "run.json").write_text(deep())
    with pytest.raises(UserError, match="not the record of a run"):
        temperature_of(str(tmp_path))


# ---- the cache of vectors --------------------------------------------------------------------------------------------


@inputs(150)
@given(st.data())
@pytest.mark.filterwarnings("ignore:the cache")
def test_a_spoiled_cache_of_vectors(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "vectors.safetensors"
    file.unlink(missing_ok=True)

    def encode(sentences):
        return torch.stack([torch.full((3,), float(len(sentence))) for sentence in sentences])

    first = EncodedOnce(encode, file)
    first(["a", "bb", "ccc"])
    first.save()
    file.write_bytes(data.draw(spoiled(file.read_bytes())))
    with_cache = EncodedOnce(encode, file)
    vectors = accepted(with_cache, ["a", "bb", "ccc", "dddd"])
    if vectors is not None:
        assert vectors.shape == (4, 3)
        with_cache.save()


def test_nothing_is_written_by_reading(places, tmp_path, monkeypatch):
    """A batch of spoiled files of every task, with a look at the folders before and after."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for folder, task in places.values():
        for odd in ODD_BYTES:
            valid = (folder / task.files[0]).read_bytes()
            (folder / task.files[0]).write_bytes(odd + valid)
            before = snapshot(folder)
            accepted(task.read, folder)
            assert snapshot(folder) == before
            (folder / task.files[0]).write_bytes(valid)
    assert not list((tmp_path / "work").iterdir())
    assert len(STS_TASKS) == 7
