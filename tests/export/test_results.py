"""Results on the card, in the hub's form, and cards that were edited by hand."""

import pytest
from huggingface_hub import ModelCard
from model_cases import build_model
from sweep_runs import write_results

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import STS_TASKS
from dystress_text.export.card import CARD, write_card
from dystress_text.export.results import renew_results
from dystress_text.training.run_record import RunRecord

MTEB = {  # of mteb 2.26.24: a task's data set, and the pairs of its test split
    "STS12": ("mteb/sts12-sts", 3108),
    "STS13": ("mteb/sts13-sts", 1500),
    "STS14": ("mteb/sts14-sts", 3750),
    "STS15": ("mteb/sts15-sts", 3000),
    "STS16": ("mteb/sts16-sts", 1186),
    "STS-B": ("mteb/stsbenchmark-sts", 1379),
    "SICK-R": ("mteb/sickr-sts", 9927),
}
THEIRS = """\
model-index:
- name: theirs
  results:
  - {task: {type: STS}, dataset: {type: a/b, name: c}, metrics: [{type: pearson, value: 1.10}]}
"""


@pytest.fixture
def folder(tmp_path):
    write_card(tmp_path, RunRecord(), build_model("bert", "avg"))
    return tmp_path


def renewed(folder):
    """Update a card's results; return them by the name of the data set."""
    assert renew_results(folder)
    results = ModelCard.load(folder / CARD).data.eval_results
    return {result.dataset_name: result for result in results}


def test_sets_of_the_same_pairs_have_the_names_of_mteb(folder):
    names = [task.name for task in STS_TASKS]
    write_results(folder, {name: {"spearman": 71.5} for name in names}, weights="w")
    found = renewed(folder)
    for task, result in zip(STS_TASKS, found.values(), strict=True):
        data, count = MTEB[task.name]
        pairs = sum(each[0] for each in task.parts.values())
        assert (result.dataset_type == data) == (pairs == count)
        assert result.metric_type == "cosine_spearman"
        assert result.metric_value == 71.5
        assert result.source_name == "dystress-text"


@pytest.mark.parametrize("group", ["pairs", "senteval/transfer"])
def test_each_set_of_a_kind_keeps_its_figure(folder, group):
    measure = "spearman" if group == "pairs" else "accuracy"
    figures = {"MR": 70.5, "CR": 81.5}
    entries = {task: {measure: figure, "sha256": task} for task, figure in figures.items()}
    write_results(folder, entries, group, weights="w")
    found = {name.split()[-1]: each.metric_value for name, each in renewed(folder).items()}
    assert found == figures


def test_edited_card_keeps_its_text_and_results_of_others(folder):
    file = folder / CARD
    text = file.read_text().replace("tags:", f"# mine\nlanguage: en\n{THEIRS}tags:")
    file.write_text(
        text.replace("## Licences", "## My text\n\nTrained with 'love'.\n\n## Licences")
    )
    write_results(folder, {"STS-B": {"spearman": 60.0}}, weights="old")
    assert set(renewed(folder)) == {"c", "MTEB STSBenchmark"}
    write_results(folder, {"STS12": {"spearman": 51.0}}, weights="new")
    search = {"cisi": {"nDCG@10": 12.0, "MRR@10": 30.5}}
    write_results(folder, search, "retrieval", weights="new")
    found = renewed(folder)
    assert set(found) == {"c", "MTEB STS12", "cisi"}
    assert found["c"].metric_value == 1.1
    card = ModelCard.load(file)
    assert "Trained with 'love'." in card.text
    assert card.data.language == "en"
    before = file.read_text()
    # not the mode of published figures
    write_results(folder, {"STS12": {"spearman": 1.0}}, weights="new", mode="fast")
    renew_results(folder)
    assert file.read_text() == before


@pytest.mark.parametrize("head", ["license: [", "model-index: 7", "- a list"])
def test_damaged_head_is_rejected(head, folder):
    broken = f"---\n{head}\n---\nof dystress-text\n"
    (folder / CARD).write_text(broken)
    write_results(folder, {"STS12": {"spearman": 50.0}}, weights="w")
    with pytest.raises(UserError, match=r"README\.md: [^\n]+\Z"):
        renew_results(folder)
    assert (folder / CARD).read_text() == broken
