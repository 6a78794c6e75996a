"""The model card: what it states about a run, and names that cannot break it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from model_cases import build_model, build_static, close, with_document_row
from sweep_runs import record_of

from dystress_text.export.card import CARD, describe_base, write_card
from dystress_text.finetuning.arguments import parse
from dystress_text.io.words import WordReader
from dystress_text.models.hybrid import lexical_part, new_hybrid
from dystress_text.training.run_record import BaseModel, RunRecord

LOSS = "infonce(shifted_cosine(0.05, 0.07, shift=-0.4))"
SETTINGS = {
    "preset": "paper",
    "loss": LOSS,
    "pooler_type": "avg",
    "train_file": None,
    "learning_rate": 3e-5,
    "model_name_or_path": "/home/someone/bert",
    "output_dir": "/home/someone/out",
}
RECORD = {
    "settings": SETTINGS,
    "base_model": {"name": "bert-base-uncased", "on_hub": True, "license": "apache-2.0"},
    "hybrid": {"name": "dense", "dim": 8, "weight": 0.7},
    "untrained": {"avg_top2": {"dev_spearman": 40.0}, "avg": {"dev_spearman": 39.0}},
    "trained": {"dev_spearman": 71.234},
}


@pytest.fixture(scope="module")
def model():
    prompts = {"query": "find: ", "document": ""}
    return build_model("bert", "avg", prompts=prompts, similarity_fn_name="manhattan")


@pytest.fixture
def card(tmp_path, model):
    """Return a function from a record to the text of its card."""

    def text(record, *more):
        write_card(tmp_path, RunRecord.from_json(record), model, *more)
        return (tmp_path / CARD).read_text()

    return text


@pytest.mark.parametrize(
    ("options", "credited"),
    [
        ("--preset=own-text", ["Cropping", "Yeh"]),  # DCL at a constant temperature
        ("--loss=infonce(learned(linear(0.05,0.07)))", ["SimCSE", "InfoNCE", "DySTreSS"]),
    ],
)
def test_card_credits_what_the_run_used(card, options, credited):
    text = card(record_of(parse(options.split())))
    lines = re.findall(r"^- (.*)", text.partition("## Citation")[2], re.MULTILINE)
    assert len(lines) == len(credited)
    for name, line in zip(credited, lines, strict=True):
        assert name in line
    tags = ModelCard(text).data.tags
    for name in ("SimCSE", "DySTreSS"):
        assert (name.lower() in tags) == (name in credited)
    assert ("2308.01140" in text) == ("DySTreSS" in credited)


def test_metadata_is_read_by_the_hub(card):
    head = ModelCard(card(RECORD)).data
    assert head.license == "apache-2.0"
    assert head.base_model == "bert-base-uncased"
    assert head.library_name == "sentence-transformers"
    assert head.datasets == ["princeton-nlp/datasets-for-simcse"]
    base = {"name": "mine", "on_hub": False, "license": None}
    own = SETTINGS | {"train_file": "/home/someone/notes.txt"}
    text = card(RECORD | {"base_model": base, "settings": own}, "onnx")
    head = ModelCard(text).data.to_dict()
    assert head["license"] == "unknown"
    assert "onnx" in head["tags"]
    assert not {"base_model", "datasets"} & head.keys()


def test_hostile_names_cannot_break_the_card(card):
    name = "a | b\n---\n# <script>`{{ 7 * 7 }}"
    record = RECORD | {"settings": SETTINGS | {"train_file": f"{name}.txt", "loss": name}}
    text = card(record, "hf", 'x"\nimport os #')
    assert "<script>" not in text
    assert "\n# &lt;" not in text
    assert "{{ 7 * 7 }}" in text
    assert ModelCard(text).data.license == "apache-2.0"
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "\nimport os" not in code
    compile(code, "card", "exec")


def test_card_states_model_recipe_and_results(card):
    text = card(RECORD)
    for row in (
        f"| loss | {LOSS} |",
        "| learning rate | 3e-05 |",
        "| dense model | dense, not trained |",
        "| dev_spearman | 40.00 | 39.00 | 71.23 |",
    ):
        assert row in text
    assert "someone" not in text  # no path of the machine
    assert "manhattan" in text
    assert '`"find: "` (query).' in text


def test_card_of_a_static_model_claims_no_base(tmp_path):
    record = record_of(parse(["--preset=own-text", "--train_file=notes.txt"]))
    record = replace(RunRecord.from_json(record), base_model=describe_base("static"))
    write_card(tmp_path, record, build_static())
    head = ModelCard.load(tmp_path / CARD).data.to_dict()
    assert not {"base_model", "license"} & head.keys()


def test_the_cards_prompt_marks_a_document_in_a_tool_that_knows_no_prompts(tmp_path):
    model = with_document_row(build_static(8, normalize=True), ["a cat ran"])
    write_card(tmp_path, RunRecord(), model)
    text = (tmp_path / CARD).read_text()
    prompt = json.loads(re.findall(r'`("[^`]+")` \(document\)', text)[0])
    typed = model.encode(f"{prompt}the dog")
    close(typed, model.encode_document("the dog"), 0)
    assert np.abs(typed - model.encode("the dog")).max() > 0.1


@pytest.mark.parametrize("kind", ["`own-text`", "`--hybrid lexical`", "`--hybrid MODEL`"])
def test_card_states_what_a_tool_without_prompts_loses(kind, tmp_path):
    model = build_static()
    if "hybrid" in kind:
        lexical = lexical_part(lambda: iter(["a cat ran"]), WordReader("english"), 8)
        dense = build_model("bert") if "MODEL" in kind else None
        model = new_hybrid(model, dense=dense, lexical=lexical)
    write_card(tmp_path, RunRecord(), model)
    text = (tmp_path / CARD).read_text()
    table = (Path(__file__).parents[2] / "docs" / "search.md").read_text()
    (row,) = (line for line in table.splitlines() if line.startswith(f"| {kind} |"))
    cacm, plain_cacm, cisi, plain_cisi = re.findall(r"\d+\.\d", row)
    assert f"{plain_cacm} in place of {cacm} and {plain_cisi} in place of {cisi}" in text


def test_base_model_is_named_without_its_path(tmp_path):
    base = tmp_path / "my-bert"
    base.mkdir()
    (base / CARD).write_text("---\nlicense: mit\n---\n# A model\n")
    assert describe_base(f"{base}/") == BaseModel("my-bert", license="mit")
    (base / CARD).write_text("---\nlicense: [\n---\n")
    assert describe_base(str(base)).license is None
