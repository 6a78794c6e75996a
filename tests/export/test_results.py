"""Results on the card, in the hub's form, and cards that were edited by hand."""

import pytest
from huggingface_hub import ModelCard
from model_cases import build_model
from sweep_runs import write_results

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import STS_TASKS
from dystress_text.export.card import CARD, write_card
from dystress_text.export.results import renew_results
from dystress_text.training.run_record import BaseModel, RunRecord

MTEB = {  # of mteb 2.26.24: a task's name, its data set, and the pairs of its test split
    "STS12": ("mteb/sts12-sts", 3108), "STS13": ("mteb/sts13-sts", 1500), "STS14": ("mteb/sts14-sts", 3750),
    "STS15": ("mteb/sts15-sts", 3000), "STS16": ("mteb/sts16-sts", 1186),
    "STSBenchmark": ("mteb/stsbenchmark-sts", 1379), "SICK-R": ("mteb/sickr-sts", 9927),
}  # fmt: skip
THEIRS = """model-index:
- name: theirs
  results:
  - {task: {type: STS}, dataset: {type: a/b, name: c}, metrics: [{type: pearson, value: 1.10}]}
"""


@pytest.fixture
def evaluated(tmp_path):
    """Add results to a folder and renew its card; return its text and the results that the hub reads."""
    record = RunRecord(base_model=BaseModel("base"))
    write_card(tmp_path, record, build_model("bert", "avg"))

    def after(figures, text=None, suite="senteval", retrieval=None, variant=None, **metadata):
        card = tmp_path / CARD
        card.write_text(before := text or card.read_text())
        metadata = {"weights": "w", **metadata}
        for task, figure in figures.items():
            name, kind = ("accuracy", "transfer") if task == "MR" else ("spearman", "sts")
            entry = {name: figure, "data_variant": variant}
            write_results(tmp_path, {task: entry}, f"{suite}/{kind}", **metadata)
        write_results(tmp_path, retrieval or {}, "retrieval", **metadata)
        renewed = renew_results(tmp_path)
        assert renewed or card.read_text() == before
        found = ModelCard.load(card).data.eval_results or []
        return card.read_text(), {result.dataset_name: result for result in found}

    return after


def test_sets_of_mteb_have_its_names(evaluated):
    pairs = {task.name: sum(count for count, *_ in task.parts.values()) for task in STS_TASKS}
    found = evaluated({**dict.fromkeys(pairs, 71.5), "MR": 80.25})[1]
    for (ours, count), (theirs, (data, mtebs)) in zip(pairs.items(), MTEB.items(), strict=True):
        entry = found.pop(f"MTEB {theirs}" if count == mtebs else f"SentEval {ours}")
        assert (entry.dataset_type == data) == (count == mtebs) == (ours != "SICK-R")
        assert (entry.task_type, entry.metric_type, entry.metric_value) == (
            "STS",
            "cosine_spearman",
            71.5,
        )
        assert (entry.dataset_split, entry.source_name) == ("test", "dystress-text")
        assert "arxiv" not in entry.source_url  # this package has measured, not the paper
    (mr,) = found.values()
    assert (mr.dataset_name, mr.dataset_type, mr.metric_type) == (
        "SentEval MR",
        "senteval",
        "accuracy",
    )
    assert mr.metric_value == 80.25
    found = evaluated({"STS12": 1.0}, variant="a part")[1]
    assert found["SentEval STS12 (a variant: a part)"].metric_value == 1.0
    assert found["MTEB STS12"].metric_value == 71.5


def test_edited_card_keeps_its_text(evaluated, tmp_path):
    head = "# mine\nlanguage: no\nversion: 1.10\n"
    text = (tmp_path / CARD).read_text().replace("license: unknown\n", f"{head}{THEIRS}")
    mine = text.replace("## Licences", "## My text\n\nTrained with 'love'.\n\n## Licences")
    card, found = evaluated({"STS12": 50.0, "STS-B": 60.0}, mine)
    assert set(found) == {"c", "MTEB STS12", "MTEB STSBenchmark"}
    again, found = evaluated({"STS12": 51.0}, weights="new")
    assert {name: result.metric_value for name, result in found.items()} == {
        "c": 1.1,
        "MTEB STS12": 51.0,
    }
    for after in (card, again):  # all else is unchanged and in its order
        lines = iter(after.splitlines())
        assert all(line in lines for line in mine.replace(THEIRS, "").splitlines())
    search = {"cisi": {"nDCG@10": 12.0, "MRR@10": 30.5, "documents": 1460}}
    newest = evaluated({"MiniSTS": 40.0}, suite="mini", retrieval=search, weights="new")
    assert set(newest[1]) == {"c", "MTEB STS12", "dystress-text MiniSTS", "cisi"}
    for more in ({"pooler_type": "cls"}, {"mode": "fast"}):
        assert evaluated({"STS12": 1.0}, weights="new", **more) == newest


@pytest.mark.parametrize(("mark", "end"), [("", "\r\n"), ("\ufeff", "\n"), ("\ufeff", "\r\n")])
def test_card_with_a_byte_order_mark_or_crlf(evaluated, tmp_path, mark, end):
    card = tmp_path / CARD
    head = f"license: mit\n{THEIRS}\n# mine\n"
    plain = card.read_text().replace("license: unknown\n", head) + "A caf\u00e9\n"
    expected, _ = evaluated({"STS12": 51.0}, plain)
    card.write_bytes((mark + plain.replace("\n", end)).encode())
    assert renew_results(tmp_path)
    assert card.read_bytes().decode() == expected
    card.write_bytes((mark + f"# Mine, by dystress{end}").encode())
    renew_results(tmp_path)
    assert card.read_bytes().startswith(b"---\nmodel-index:\n")


@pytest.mark.parametrize(
    "head",
    [
        "license: [",
        "model-index: 7",
        "model-index: {results: 1}",
        "- a list",
        'notes: "a\nmodel-index: b\nc"',
    ],
)
def test_damaged_head_is_rejected(head, evaluated, tmp_path):
    broken = f"---\n{head}\n---\nof dystress-text\n"
    with pytest.raises(UserError, match=r"README\.md: its head cannot take the results: [^\n]+\Z"):
        evaluated({"STS12": 50.0}, broken)
    assert (tmp_path / CARD).read_text() == broken
