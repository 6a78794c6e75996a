"""The model card: what it says, whose licence it states, and code that runs as printed."""

import re

import pytest
from huggingface_hub import ModelCard
from model_cases import build_model, build_static
from sweep_runs import record_of

from dystress_text.config.arguments import parse
from dystress_text.config.presets import PRESETS
from dystress_text.export.card import CARD, describe_base, write_card
from dystress_text.export.citation import credits_of
from dystress_text.training.run_record import RunRecord

MODEL = build_model("bert", "avg")


@pytest.fixture
def card(tmp_path):
    """A function from a record to the text of the card."""

    def text(record, *more):
        write_card(tmp_path, RunRecord.from_json(record), MODEL, *more)
        return (tmp_path / CARD).read_text()

    return text


def a_record(**changes):
    metrics = {
        "sts_b_dev_spearman": 71.234,
        "sts_b_dev_alignment": 0.25,
        "sts_b_dev_uniformity": -2.5,
    }
    settings = {
        "preset": "paper", "pooler_type": "avg", "train_file": None, "eval_set": "stsb_dev", "seed": 0,
        "learning_rate": 3e-5, "train_batch_size": 64, "supervised": False,
        "model_name_or_path": "/home/someone/bert", "output_dir": "/home/someone/out",
        **changes.pop("settings", {}),
    }  # fmt: skip
    return {
        "settings": settings,
        "loss": "infonce(shifted_cosine(0.05, 0.07, shift=-0.4))",
        "corpus": {"sentences": 1000, "sha256": "ab" * 32},
        "versions": {"torch": "2.13.0", "transformers": "5.23.0"},
        "base_model": {"name": "bert-base-uncased", "on_hub": True, "license": "apache-2.0"},
        "untrained": {
            name: metrics | {"sts_b_dev_spearman": x}
            for name, x in (("avg_top2", 40.0), ("avg", 39.0))
        },
        "trained": metrics,
        "steps": 250,
        **changes,
    }




@pytest.mark.parametrize(
    ("options", "credited", "tags"),
    [("--preset=own-text", ["Cropping", "Yeh"], set()),  # DCL at the constant 0.03
     ("--temp=0.05", ["SimCSE", "InfoNCE"], {"simcse"}),
     ("--preset=sts-macl", ["SimCSE", "Huang"], {"simcse"}),
     ("--loss=infonce(scheduled(0.05,0.07))", ["SimCSE", "InfoNCE", "Kukleva"], {"simcse"}),
     ("--loss=infonce(focal(cosine(0.05,0.07))) --views=crop", ["Cropping", "InfoNCE", "Hou", "DySTreSS"],
      {"dystress"}),
     ("--loss=infonce(learned(linear(0.05,0.07)))", ["SimCSE", "InfoNCE", "DySTreSS"], {"dystress", "simcse"})],
)  # fmt: skip
def test_a_card_credits_what_the_run_used_and_the_paper_for_its_temperature_alone(
    card, options, credited, tags
):
    text = card(record_of(parse(options.split())))
    lines = re.findall(r"^- (.*)", text.partition("## Citation")[2], re.MULTILINE)
    assert len(lines) == len(credited)
    assert all(name in line for name, line in zip(credited, lines, strict=True))
    assert tags == {"dystress", "simcse"} & set(ModelCard(text).data.tags)
    assert (
        ("2308.01140" in text)
        == ("DySTreSS" in text.partition("## Citation")[2])
        == ("dystress" in tags)
    )
    assert not re.search(
        "fine-tuned|Citation|2308.01140", card({})
    )  # of a model that this package has not trained




def test_the_hub_can_read_the_head_and_no_licence_is_made_up(card):
    head = ModelCard(card(a_record())).data.to_dict()
    assert head["license"] == "apache-2.0"
    assert head["base_model"] == "bert-base-uncased"
    assert (head["library_name"], head["pipeline_tag"]) == (
        "sentence-transformers",
        "sentence-similarity",
    )
    assert head["datasets"] == ["princeton-nlp/datasets-for-simcse"]
    assert "onnx" in ModelCard(card(a_record(), "onnx")).data.to_dict()["tags"]
    base = {"name": "mine", "on_hub": False, "license": None}
    text = card(a_record(base_model=base, settings={"train_file": "/home/someone/notes.txt"}))
    head = ModelCard(text).data.to_dict()
    assert head["license"] == "unknown"
    assert not {"base_model", "datasets"} & head.keys()
    assert "| data | notes.txt, the user's own |" in text
    assert "CC BY-SA" not in text
    text = card(a_record(data_variants={"train_file": "a sample", "eval_set": "half of it"}))
    assert "not the published data but a variant: a sample" in text
    assert "not the published one but a variant: half of it" in text
    assert "datasets" not in ModelCard(text).data.to_dict()


def test_names_cannot_break_the_card(card):
    name = "a | b\n---\n# <script>`{{ 7 * 7 }}"
    text = card(
        a_record(settings={"train_file": f"{name}.txt"}, loss=name), "native", 'x"\nimport os #'
    )
    assert "<script>" not in text
    assert "\n# &lt;" not in text
    assert "{{ 7 * 7 }}" in text
    assert ModelCard(text).data.to_dict()["license"] == "apache-2.0"
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        assert "\nimport os" not in code
        compile(code, "card", "exec")






@pytest.mark.parametrize("layout", ["native", "hf", "onnx"])
def test_prompts_and_the_similarity_are_on_the_card_of_each_layout(tmp_path, layout):
    kept = {"prompts": {"query": "find: ", "document": ""}, "similarity_fn_name": "manhattan"}
    write_card(tmp_path, RunRecord(), build_model("bert", "avg", **kept), layout)
    text = (tmp_path / CARD).read_text()
    assert "compared by manhattan distance." in text
    assert '`"find: "` (query)' in text
    assert "document" not in text.partition("## How")[0]
