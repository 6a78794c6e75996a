"""Task files: orders, encodings and counts."""

import pytest

from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.catalogue import SUITES, average, choose
from dystress_text.evaluation.text_sets import read_mrpc, read_trec, read_two_classes

TASKS = [task for tasks in SUITES["senteval"].values() for task in tasks]


def test_average_needs_every_task():
    assert average({"a": 10.0, "b": 20.5}) == 15.25
    assert average({"a": 10.0, "b": None}) is None
    simcse = [68.40, 82.41, 74.38, 80.91, 78.56, 76.85, 72.23]  # its paper prints the average too
    assert average(dict(enumerate(simcse))) == 76.25


def test_tasks_are_chosen_by_name_and_group():
    chosen = choose("senteval", ["TREC", "sts", "MR"])
    assert [task.name for task in chosen["transfer"]] == ["MR", "TREC"]
    assert len(chosen["sts"]) == 7
    with pytest.raises(UserError, match=r"^tasks: .*STS-B"):
        choose("senteval", ["STSB"])


def write(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


def test_texts_are_sorted_by_length_and_label(tmp_path):
    positive = write(tmp_path, "pos", b"long and good one\nfine film\ngreat film\n")
    negative = write(tmp_path, "neg", b"bad film\ncaf\xe9 \x85 noir\n  a \t b\x00c  d\n")
    split = read_two_classes(positive, negative)
    (texts,) = split.columns
    assert texts[:4] == ("bad film", "caf\xe9 noir", "fine film", "great film")
    assert texts[4:] == ("a b\x00c d", "long and good one")
    assert split.labels.tolist() == [0, 0, 1, 1, 0, 1]


def test_layouts_of_trec_and_mrpc(tmp_path):
    split = read_trec(write(tmp_path, "trec", b"NUM:date When ?\nABBR:exp What is caf\xe9 b ?\n"))
    assert split.columns == (("When ?", "What is caf\xe9 b ?"),)
    assert split.labels.tolist() == [5, 0]
    header = b"\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    rows = b'1\t1\t2\ta "b c\td e\r\n0\t3\t4\tx\ty z\r\n'
    split = read_mrpc(write(tmp_path, "mrpc", header + rows))
    assert split.columns == (("x", 'a "b c'), ("y z", "d e"))
    assert split.labels.tolist() == [0, 1]


@pytest.mark.parametrize("content", [b"\xff", b"2\tx\tx\ta\tb", b"1\tx"])
def test_damaged_files_are_refused(tmp_path, content):
    with pytest.raises(DataError, match=r"line 2|UTF-8"):
        read_mrpc(write(tmp_path, "mrpc", b"header\n" + content))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_real_files_have_the_counts_of_the_protocol(task, shared):
    folder = shared / "data" / "senteval"
    if not all((folder / file).is_file() for file in task.files):
        pytest.skip("not all files are there")
    task.read(folder)
