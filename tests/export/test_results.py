"""Results on the card: MTEB's names where the sets are MTEB's, the hub's form, and a card that was edited by hand."""

import json

import pytest
from conftest import build_transformer
from huggingface_hub import ModelCard

from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import STS_TASKS
from dystress_text.export.card import CARD, write_card
from dystress_text.export.results import carry_results, renew_results

ABOUT = {"suite": "senteval", "weights": "w", "pooler_type": None, "dtype": "fp32", "data_variant": None}
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
    """A function that leaves results in a folder with a card, renews the card, and returns what it was and is."""
    write_card(tmp_path, {}, SentenceEncoder(build_transformer("bert"), "avg"), 40)

    def after(figures, edit=lambda text: text, **more):
        card, suite = tmp_path / CARD, more.get("suite", "senteval")
        tasks = {task: {"accuracy" if task == "MR" else "spearman": figure} for task, figure in figures.items()}
        (tmp_path / f"senteval-{suite}-test.json").write_text(json.dumps({**ABOUT, "tasks": tasks, **more}))
        before = edit(card.read_text())
        card.write_text(before)
        line = renew_results(tmp_path, suite)
        assert (line is None) == (card.read_text() == before)
        return before, card.read_text()

    return after


def results_of(card):
    """As the hub's library reads them."""
    return {found.dataset_name: found for found in ModelCard(card).data.eval_results or ()}


def test_a_set_has_mtebs_name_where_it_is_mtebs(evaluated):
    pairs = {task.name: sum(count for count, *_ in task.parts.values()) for task in STS_TASKS}
    found = results_of(evaluated({**dict.fromkeys(pairs, 71.5), "MR": 80.25})[1])
    for ours, count in pairs.items():
        theirs = {"STS-B": "STSBenchmark"}.get(ours, ours)
        data, mtebs = MTEB[theirs]
        entry = found.pop(f"MTEB {theirs}" if count == mtebs else f"SentEval {ours}")
        assert (entry.dataset_type == data) == (count == mtebs) == (ours != "SICK-R")
        assert (entry.task_type, entry.dataset_split, entry.metric_type) == ("STS", "test", "cosine_spearman")
        assert (entry.metric_value, entry.source_name) == (71.5, "dystress-text")
    (mr,) = found.values()
    assert (mr.dataset_name, mr.dataset_type, mr.metric_type) == ("SentEval MR", "senteval", "accuracy")
    assert mr.metric_value == 80.25
    (sample,) = results_of(evaluated({"STS12": 1.0}, data_variant="a sample")[1]).values()
    assert (sample.dataset_name, sample.dataset_type) == ("SentEval STS12 (a variant: a sample)", "senteval")


def test_of_a_card_that_was_edited_our_part_alone_is_renewed(evaluated, tmp_path):
    head, text = "# mine\nlanguage: no\nversion: 1.10\n", "## My words\n\nTrained with 'love'.\n\n"

    def edit(card):
        return card.replace("license: unknown\n", f"{head}{THEIRS}").replace("## Licences", f"{text}## Licences")

    before, card = evaluated({"STS12": 50.0, "STS-B": 60.0}, edit)
    assert {name: found.metric_value for name, found in results_of(card).items()} == {
        "c": 1.1, "MTEB STS12": 50.0, "MTEB STSBenchmark": 60.0
    }  # fmt: skip
    assert "| MTEB STS12 | 50.00 |" in card
    again = evaluated({"STS12": 51.0})[1]
    assert {name: found.metric_value for name, found in results_of(again).items()} == {"c": 1.1, "MTEB STS12": 51.0}
    assert "MTEB STSBenchmark" not in again
    assert again.count("## Evaluation") == 1
    assert ModelCard(again).data.model_name == "theirs"
    for after in (card, again):  # all else is there to the letter, in its order
        lines = iter(after.splitlines())
        assert all(line in lines for line in before.replace(THEIRS, "").splitlines())
    both = evaluated({"MiniSTS": 40.0}, suite="mini")[1]
    assert set(results_of(both)) == {"c", "MTEB STS12", "dystress-text MiniSTS"}
    other = evaluated({"MiniSTS": 41.0}, suite="mini", weights="others")[1]
    assert set(results_of(other)) == {"c", "dystress-text MiniSTS"}  # STS12 was another model's
    for more in ({"dtype": "bf16"}, {"pooler_type": "cls"}):
        assert evaluated({"STS12": 1.0}, **more)[1] == other
    (tmp_path / "copy.md").write_text("---\nlicense: mit\n---\n# Copy\n")
    carry_results(tmp_path / CARD, tmp_path / "copy.md")
    assert set(results_of((tmp_path / "copy.md").read_text())) == set(results_of(other))


@pytest.mark.parametrize("head", ["license: [", "model-index: 7", "model-index: {results: 1}", "- a list"])
def test_a_head_that_cannot_take_results_is_one_line(head, evaluated, tmp_path):
    broken = f"---\n{head}\n---\nof dystress-text\n"
    with pytest.raises(UserError, match=r"README\.md: its head cannot take the results: ") as error:
        evaluated({"STS12": 50.0}, lambda _: broken)
    assert "\n" not in str(error.value)
    assert (tmp_path / CARD).read_text() == broken


def test_a_card_of_another_program_and_one_without_a_head(evaluated):
    theirs = "---\nlicense: mit\n---\n# Theirs\n"
    assert evaluated({"STS12": 50.0}, lambda _: theirs)[1] == theirs
    card = evaluated({"STS12": 50.0}, lambda _: "# Mine, by dystress\n")[1]
    assert set(results_of(card)) == {"MTEB STS12"}
    assert card.endswith("# Mine, by dystress\n")
