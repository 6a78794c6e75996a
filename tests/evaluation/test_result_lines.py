"""Results as lines: nothing is lost or changed, the newest of a key counts, 0.2 is converted."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dystress_text.errors import UserError
from dystress_text.evaluation.results import (
    RESULTS,
    Result,
    append,
    convert,
    newest,
    open_results,
    read_results,
    results_in,
)

LINE = Result("m", "w", "mini/sts", "MiniSTS", "d", {"spearman": 50.0})


def test_lines_come_back_as_they_were_written_oldest_first(tmp_path):
    file = tmp_path / "new" / RESULTS
    written = [replace(LINE, figures={"spearman": float(i)}, time=str(i)) for i in range(3)]
    for result in written:
        append(file, result)
        assert read_results(file)[-1] == result
    assert read_results(file) == written
    assert newest(read_results(file), lambda result: result.task) == written[-1:]
    unknown = {**json.loads(file.read_text().splitlines()[0]), "later": 1}
    file.write_text(json.dumps(unknown))  # by a later version, without a line end
    append(file, LINE)
    assert read_results(file) == [written[0], LINE]


def test_processes_that_append_at_once_lose_nothing(tmp_path):
    file = tmp_path / RESULTS

    def write(which):
        open_results(file)
        for i in range(12):
            append(file, replace(LINE, task=f"{which}{i}", details={"long": "x" * 10_000}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    found = [result.task for result in read_results(file)]
    assert sorted(found) == sorted(f"{which}{i}" for which in "abcd" for i in range(12))
    assert {path.name for path in tmp_path.iterdir()} == {RESULTS}


@pytest.mark.parametrize(
    "damaged",
    ["{", "[]", "7", '{"model": "m"}', '{"model": "m", "weights": null, "group": "x", "task": "t", "data": null, '
     '"figures": {}}', '{"model": "m", "weights": null, "group": "pairs", "task": "t", "data": null, '
     '"figures": {"spearman": "7"}}', '{"model": 1, "weights": null, "group": "pairs", "task": "t", "data": null, '
     '"figures": {"spearman": 7}}', "[" * 100_000],
)  # fmt: skip
def test_a_damaged_line_is_one_line_with_its_number(tmp_path, damaged):
    file = tmp_path / RESULTS
    append(file, LINE)
    content = f"{file.read_text()}\n{damaged}\n"
    file.write_text(content)
    for read in (read_results, open_results):
        with pytest.raises(UserError) as caught:
            read(file)
        assert f"{file}: line 3 is no" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert file.read_text() == content


def test_a_file_of_0_2_becomes_lines_once(tmp_path, shared):
    file = shared / "models" / "bert-mini-wiki" / "senteval-senteval-test.json"
    old = json.loads(file.read_text())
    earlier, geometry = convert(file)[:2], convert(file)[-1]
    assert [result.group for result in convert(file)] == [
        "senteval/geometry",
        "senteval/sts",
        "senteval/geometry",
    ]
    sts = earlier[1]
    assert (sts.model, sts.weights, sts.task) == (old["model"], old["weights"], "STS-B")
    assert sts.figures == {"spearman": 43.85, "mean": 43.85, "weighted_mean": 43.85}
    assert sts.settings == {
        "mode": "test", "pooler_type": "avg", "max_seq_length": 256, "dtype": "fp32", "prompts": None
    }  # fmt: skip
    assert (sts.variant, sts.details["counts"]) == ("sample", {"test": 1379})
    assert sts.versions["dystress-text"] == "0.2.0"
    assert geometry.figures["alignment"] == old["geometry"]["alignment"]
    assert geometry.data != earlier[0].data  # measured before on data without a checksum

    copy = tmp_path / file.name
    copy.write_text(file.read_text())
    assert results_in(tmp_path) == convert(file)  # reading writes nothing
    assert list(tmp_path.iterdir()) == [copy]
    for _ in range(2):
        open_results(tmp_path / RESULTS)
        append(tmp_path / RESULTS, LINE)
    assert results_in(tmp_path) == [*convert(file), LINE, LINE]
    copy.write_text('{"tasks": 7}')
    with pytest.raises(UserError, match=r"senteval-senteval-test\.json is not a result file"):
        convert(copy)


def test_other_settings_and_data_of_0_2_come_before_the_newest(tmp_path):
    entry = {"spearman": 1.0, "sha256": {"a": "1"}}
    search = {"nDCG@10": 9.0, "MRR@10": 8.0, "recall@100": 7.0, "documents": 3, "sha256": "s"}
    base = {"suite": "mini", "model": "m", "weights": "w", "mode": "test"}
    newest_content = {
        **base,
        "pooler_type": None,
        "tasks": {"MiniSTS": entry, "MiniQuestions": {"accuracy": 60.0}},
        "other_data": {"MiniSTS (0a1b2c3d)": {**entry, "spearman": 0.5}},
        "retrieval": {"cisi": search},
        "pairs": {"mine": {"spearman": 3.0, "count": 4}},
    }
    others = [{**base, "pooler_type": name, "tasks": {"MiniSTS": entry}} for name in ("avg", "cls")]
    file = tmp_path / "old.json"
    file.write_text(json.dumps({**newest_content, "others": others}))
    found = [
        (each.settings["pooler_type"], each.group, each.task, *each.columns.values())
        for each in convert(file)
    ]
    assert found == [
        ("cls", "mini/sts", "MiniSTS", 1.0),  # the newest of the others stood first
        ("avg", "mini/sts", "MiniSTS", 1.0),
        (None, "mini/sts", "MiniSTS", 0.5),
        (None, "mini/sts", "MiniSTS", 1.0),
        (None, "mini/transfer", "MiniQuestions", 60.0),
        (None, "pairs", "mine", 3.0),
        (None, "retrieval", "cisi", 9.0, 8.0, 7.0),
    ]
