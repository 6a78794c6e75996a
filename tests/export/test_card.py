"""The model card: what it states about a run, and names that cannot break it."""

import re

import pytest
from huggingface_hub import ModelCard
from model_cases import build_model, build_static
from sweep_runs import record_of

from dystress_text.config.arguments import parse
from dystress_text.export.card import CARD, describe_base, write_card
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
     ("--loss=infonce(scheduled(0.05,0.07))", ["SimCSE", "InfoNCE", "Kukleva"], {"simcse"}),
     ("--loss=infonce(learned(linear(0.05,0.07)))", ["SimCSE", "InfoNCE", "DySTreSS"], {"dystress", "simcse"})],
)  # fmt: skip
def test_card_credits_what_the_run_used(card, options, credited, tags):
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


def test_metadata_is_read_by_the_hub(card):
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
    text = card(a_record(data_variants={"train_file": "a sample"}))
    assert "datasets" not in ModelCard(text).data.to_dict()


def test_hostile_names_cannot_break_the_card(card):
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
def test_prompts_and_similarity_are_on_the_card(tmp_path, layout):
    kept = {"prompts": {"query": "find: ", "document": ""}, "similarity_fn_name": "manhattan"}
    write_card(tmp_path, RunRecord(), build_model("bert", "avg", **kept), layout)
    text = (tmp_path / CARD).read_text()
    assert "compared by manhattan distance." in text
    assert '`"find: "` (query)' in text
    assert "document" not in text.partition("## How")[0]


def test_card_states_recipe_and_results(card):
    settings = {"views": "crop", "sample": "document"}
    hybrid = {"name": "dense", "dim": 8, "weight": 0.7}
    held_out = {"texts": 30, "gain": 1.0, "error": None}
    text = card(a_record(settings=settings, hybrid=hybrid, held_out=held_out))
    rows = [
        ("loss", "infonce(shifted_cosine(0.05, 0.07, shift=-0.4))"),
        ("learning rate", "3e-05"),
        ("held out", "30"),
        ("dense model", "dense, not trained"),
        ("sts_b_dev_spearman", "40.00", "39.00", "71.23"),
        ("sts_b_dev_alignment", "0.2500", "0.2500", "0.2500"),
    ]
    assert [row for row in rows if f"| {' | '.join(row)} |" not in text] == []
    assert "someone" not in text  # no path of the machine


def test_card_of_a_static_model_claims_no_base(tmp_path):
    record = record_of(parse(["--preset=own-text", "--train_file=notes.txt"]))
    record["base_model"] = describe_base("static")
    write_card(tmp_path, RunRecord.from_json(record), build_static())
    assert not {"base_model", "license"} & ModelCard.load(tmp_path / CARD).data.to_dict().keys()


def test_base_model_is_named_without_its_path(tmp_path):
    base = tmp_path / "my-bert"
    base.mkdir()
    (base / CARD).write_text("---\nlicense: mit\n---\n# A model\n")
    assert describe_base(f"{base}/") == {"name": "my-bert", "on_hub": False, "license": "mit"}
    (base / CARD).write_text("---\nlicense: [\n---\n")
    assert describe_base(str(base))["license"] is None
