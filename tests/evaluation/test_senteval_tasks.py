"""Task files: orders, encodings, and every way in which a file can be wrong."""

from dataclasses import replace

import numpy as np
import pytest

from dystress_text.errors import DataError, UserError
from dystress_text.evaluation.catalogue import SUITES, checksums, choose
from dystress_text.files.places import EMBEDDED

TASKS = {task.name: task for groups in SUITES.values() for tasks in groups.values() for task in tasks}


def names_of(suite):
    return [task.name for tasks in SUITES[suite].values() for task in tasks]


def test_columns_stand_in_the_order_of_the_published_tables():
    assert " ".join(names_of("senteval")) == (
        "STS12 STS13 STS14 STS15 STS16 STS-B SICK-R MR CR SUBJ MPQA SST2 TREC MRPC"
    )


def test_tasks_are_chosen_by_name_and_group():
    chosen = choose("senteval", ["TREC", "sts", "MR"])
    assert [task.name for task in chosen["transfer"]] == ["MR", "TREC"]
    assert len(chosen["sts"]) == 7
    assert list(choose("mini", ["all"])) == ["sts", "transfer"]
    assert list(choose("senteval", ["STS-B"])) == ["sts"]
    with pytest.raises(UserError, match="--tasks: no 'STS17' in suite 'senteval'; known are all, sts, transfer, STS12"):
        choose("senteval", ["STS17"])


@pytest.mark.parametrize("name", names_of("mini"))
def test_the_mini_suite_is_whole_and_large_enough(name):
    task = TASKS[name]
    splits = task.read(EMBEDDED / "senteval")
    assert sum(len(split) for split in splits.values()) >= 200
    assert set(checksums(task, EMBEDDED / "senteval")) == set(task.files)
    if name != "MiniSTS":
        counts = np.bincount(np.concatenate([split.labels for split in splits.values()]))
        assert len(counts) == task.classes
        assert counts.min() >= 0.7 * counts.mean()
        texts = [text for split in splits.values() for text in zip(*split.columns, strict=True)]
        assert len(set(texts)) == len(texts)


def write(folder, name, content):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def test_two_classes_are_sorted_by_length_and_label_and_otherwise_stay(tmp_path):
    write(tmp_path, "MR/rt-polarity.pos", "long and good one\nfine film\ngreat film\n")
    write(tmp_path, "MR/rt-polarity.neg", b"bad film\ncaf\xe9 \x85 noir\n  a \t b\x00c  d\n")
    split = replace(TASKS["MR"], counts={"all": 6}).read(tmp_path)["all"]
    assert split.columns == (
        ("bad film", "caf\xe9 noir", "fine film", "great film", "a b\x00c d", "long and good one"),
    )
    assert split.labels.tolist() == [0, 0, 1, 1, 0, 1]


def test_questions_are_classes_and_latin_1(tmp_path):
    write(tmp_path, "TREC/train_5500.label", "NUM:date When ?\nABBR:exp What is a b ?\n")
    write(tmp_path, "TREC/TREC_10.label", b"DESC:def What is caf\xe9 ?\n")
    splits = replace(TASKS["TREC"], counts={"train": 2, "test": 1}).read(tmp_path)
    assert splits["train"].columns == (("When ?", "What is a b ?"),)
    assert splits["train"].labels.tolist() == [5, 0]
    assert splits["test"].columns == (("What is caf\xe9 ?",),)


def test_paraphrases_keep_quotes_and_skip_the_header(tmp_path):
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    write(tmp_path, "MRPC/msr_paraphrase_train.txt", header + '1\t1\t2\ta "b c\td e\r\n0\t3\t4\tx\ty z\r\n')
    write(tmp_path, "MRPC/msr_paraphrase_test.txt", header + "0\t5\t6\tq\tr\r\n")
    train = replace(TASKS["MRPC"], counts={"train": 2, "test": 1}).read(tmp_path)["train"]
    assert train.columns == (("x", 'a "b c'), ("y z", "d e"))
    assert train.labels.tolist() == [0, 1]


BROKEN = [
    ("SST2", {"SST/binary/sentiment-train": "a b\t1\n"}, "1 texts in 'train', 67,349 expected"),
    ("SST2", {"SST/binary/sentiment-train": "a b 1\n"}, "line 1: 2 tab-separated columns expected, 1 found"),
    ("SST2", {"SST/binary/sentiment-train": "a\t1\nb\t2\n"}, "line 2: '2' is none of the classes 0, 1"),
    ("SST2", {"SST/binary/sentiment-train": b"a\t1\n\xff\t0\n"}, "not UTF-8"),
    ("SST2", {"SST/binary/sentiment-train": ""}, "is empty"),
    ("SST2", {}, "cannot read"),
    ("TREC", {"TREC/train_5500.label": "WHO:x y\n"}, "line 1: 'WHO' is none of the classes ABBR"),
    ("MR", {"MR/rt-polarity.pos": "good\n", "MR/rt-polarity.neg": "bad\n"}, "2 texts in 'all', 10,662 expected"),
    ("MRPC", {"MRPC/msr_paraphrase_train.txt": "h\n1\t2\t3\n"}, "line 2: 5 tab-separated columns"),
    ("STS-B", {"STS/STSBenchmark/sts-test.csv": "a\tb\tc\td\t5\tx\ty\n"}, "1 pairs, 1,379 expected"),
    ("SICK-R", {"SICK/SICK_test_annotated.txt": ""}, "is empty"),
]


@pytest.mark.parametrize(("name", "files", "words"), BROKEN, ids=[f"{b[0]}-{b[2][:20]}" for b in BROKEN])
def test_a_wrong_file_is_one_line_with_its_place(tmp_path, name, files, words):
    whole = {"SST/binary/sentiment-dev": "a\t1\n", "SST/binary/sentiment-test": "a\t1\n"}
    whole |= {"TREC/TREC_10.label": "NUM:x y\n", "MRPC/msr_paraphrase_test.txt": "h\n1\t1\t2\ta\tb\n"}
    for file, content in {**whole, **files}.items():
        write(tmp_path, file, content)
    with pytest.raises(DataError, match=words) as caught:
        TASKS[name].read(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", names_of("senteval"))
def test_real_files_have_the_counts_of_the_protocol(name, shared):
    folder = shared / "data" / "senteval"
    if not all((folder / file).is_file() for file in TASKS[name].files):
        pytest.skip(f"no files of {name}")
    TASKS[name].read(folder)
