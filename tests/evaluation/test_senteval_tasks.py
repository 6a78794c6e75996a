"""Task files: orders, encodings and counts."""

from dataclasses import fields

import pytest

from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.catalogue import SUITES, average, choose
from dystress_text.evaluation.classifier import RECIPES
from dystress_text.evaluation.embedder import DTYPES, OWN_POOLER
from dystress_text.evaluation.readers import read_mrpc, read_trec, read_two_classes
from dystress_text.evaluation.settings import SentEvalSettings
from dystress_text.models.poolers import POOLERS

TASKS = {
    task.name: task for groups in SUITES.values() for tasks in groups.values() for task in tasks
}


def test_average_needs_every_task():
    assert average({"a": 10.0, "b": 20.5}) == 15.25
    assert average({"a": 10.0, "b": None}) is None


def test_tasks_are_chosen_by_name_and_group():
    chosen = choose("senteval", ["TREC", "sts", "MR"])
    assert [task.name for task in chosen["transfer"]] == ["MR", "TREC"]
    assert len(chosen["sts"]) == 7
    assert list(choose("mini", ["all"])) == ["sts", "transfer"]
    with pytest.raises(UserError, match=r"^tasks: .*STS-B"):
        choose("senteval", ["STSB"])


def test_options_know_all_choices():
    choices = {entry.name: entry.metadata.get("choices") for entry in fields(SentEvalSettings)}
    assert choices["pooler_type"] == (*POOLERS, OWN_POOLER)
    assert (choices["mode"], choices["dtype"]) == (tuple(RECIPES), tuple(DTYPES))


def write(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


def test_texts_are_sorted_by_length_and_label(tmp_path):
    positive = write(tmp_path, "pos", b"long and good one\nfine film\ngreat film\n")
    negative = write(tmp_path, "neg", b"bad film\ncaf\xe9 \x85 noir\n  a \t b\x00c  d\n")
    split = read_two_classes(positive, negative)
    assert split.columns == (
        ("bad film", "caf\xe9 noir", "fine film", "great film", "a b\x00c d", "long and good one"),
    )
    assert split.labels.tolist() == [0, 0, 1, 1, 0, 1]


def test_layouts_of_trec_and_mrpc(tmp_path):
    split = read_trec(write(tmp_path, "trec", b"NUM:date When ?\nABBR:exp What is caf\xe9 b ?\n"))
    assert (split.columns, split.labels.tolist()) == ((("When ?", "What is caf\xe9 b ?"),), [5, 0])
    header = b"\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    rows = b'1\t1\t2\ta "b c\td e\r\n0\t3\t4\tx\ty z\r\n'
    split = read_mrpc(write(tmp_path, "mrpc", header + rows))
    assert (split.columns, split.labels.tolist()) == ((("x", 'a "b c'), ("y z", "d e")), [0, 1])


@pytest.mark.parametrize("content", [b"\xff", b"2\tx\tx\ta\tb", b"1\tx", b"\0" * 100])
def test_damaged_files_are_refused(tmp_path, content):
    with pytest.raises(DataError, match=r"line 2|UTF-8"):
        read_mrpc(write(tmp_path, "mrpc", b"header\n" + content))


@pytest.mark.parametrize(
    "name", [task.name for group in SUITES["senteval"].values() for task in group]
)
def test_real_files_have_the_counts_of_the_protocol(name, shared):
    folder = shared / "data" / "senteval"
    if not all((folder / file).is_file() for file in TASKS[name].files):
        pytest.skip(f"no files of {name}")
    TASKS[name].read(folder)
