"""The model card: what it says, whose licence it states, and code that runs as printed."""

import re

import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from huggingface_hub import ModelCard

from dystress_text import train
from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.saved_model import SavedModel
from dystress_text.export.card import describe_base, model_card, write_card

MODEL = SavedModel("avg", 16, 40, "bert", 3)


def a_record(**changes):
    metrics = {"sts_b_dev_spearman": 71.234, "sts_b_dev_alignment": 0.25, "sts_b_dev_uniformity": -2.5}
    settings = {
        "preset": "paper", "pooler_type": "avg", "train_file": None, "eval_set": "stsb_dev", "seed": 0,
        "detach_temperature": True, "learning_rate": 3e-5, "train_batch_size": 64, "supervised": False,
        "model_name_or_path": "/home/someone/bert", "output_dir": "/home/someone/out",
        **changes.pop("settings", {}),
    }  # fmt: skip
    return {
        "settings": settings,
        "objective": "InfoNCELoss",
        "temperature": "ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07, shift=-0.4, scale=0.7)",
        "corpus": {"sentences": 1000, "sha256": "ab" * 32},
        "versions": {"torch": "2.13.0", "transformers": "5.23.0"},
        "base_model": {"name": "bert-base-uncased", "on_hub": True, "license": "apache-2.0"},
        "untrained": {
            "avg_top2": metrics | {"sts_b_dev_spearman": 40.0},
            "avg": metrics | {"sts_b_dev_spearman": 39.0},
        },
        "trained": metrics,
        "steps": 250,
        **changes,
    }


def test_the_card_says_what_was_done_and_what_came_of_it():
    trained = a_record()["trained"] | {"mr_dev_accuracy": 61.5}
    learned, head = {"tau_min": 0.04}, {"starts": "new", "kept": True}
    settings = {"do_mlm": True, "mlm_weight": 0.2, "lora_rank": 8, "merge_lora": False}
    pairs = {"cosines": {"0.5": 0.1, "0.001": 0.531}}
    text = model_card(
        a_record(trained=trained, learned_temperature=learned, head=head, settings=settings, random_pairs=pairs), MODEL
    )
    for said in (
        "| temperature | ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07, shift=-0.4, scale=0.7) |",
        "| temperature in the gradient | no |", "| learning rate | 3e-05 |", "| seed | 0 |",
        "| temperature as learned | tau_min 0.04 |", "| dense + tanh while training | yes |",
        "| masked-language-model loss | weight 0.2 |", "adapters of rank 8 were trained and are merged",
        "| untrained, best pooling | avg_top2 | 40.00 | 0.2500 | -2.5000 |", "| untrained | avg | 39.00 |",
        "| this model | avg | 71.23 | 0.2500 | -2.5000 |", "On STS-B dev, which also chose the step: ",
        "| mr_dev_accuracy | 61.50 |", "| 1 in 2 | 0.100 |\n| 1 in 1,000 | 0.531 |\n\n## Licences",
        "torch 2.13.0, transformers 5.23.0", "CC BY-SA 3.0", "Base model: apache-2.0, as its card states",
        "up to 40 tokens", "Siladittya Manna and Soumitri Chattopadhyay",
    ):  # fmt: skip
        assert said in text
    assert "someone" not in text  # no path of the machine that trained
    assert "supervised" not in text
    empty = model_card({}, MODEL)
    assert not re.search("## (Recipe|Results|Further|Which)", empty)


def test_the_hub_can_read_the_head_and_no_licence_is_made_up():
    head = ModelCard(model_card(a_record(), MODEL)).data.to_dict()
    assert head["license"] == "apache-2.0"
    assert head["base_model"] == "bert-base-uncased"
    assert (head["library_name"], head["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")
    assert head["datasets"] == ["princeton-nlp/datasets-for-simcse"]
    assert "onnx" in ModelCard(model_card(a_record(), MODEL, "onnx")).data.to_dict()["tags"]
    base = {"name": "mine", "on_hub": False, "license": None}
    text = model_card(a_record(base_model=base, settings={"train_file": "/home/someone/notes.txt"}), MODEL)
    head = ModelCard(text).data.to_dict()
    assert head["license"] == "unknown"
    assert not {"base_model", "datasets"} & head.keys()
    assert "| data | notes.txt, the user's own |" in text
    assert "CC BY-SA" not in text


def test_a_variant_is_no_published_set():
    text = model_card(a_record(data_variants={"train_file": "a sample", "eval_set": "half of it"}), MODEL)
    assert "not the published data but a variant: a sample" in text
    assert "not the published one but a variant: half of it" in text
    assert "datasets" not in ModelCard(text).data.to_dict()


def test_names_cannot_break_the_card():
    name = "a | b\n---\n# <script>`{{ 7 * 7 }}"
    text = model_card(a_record(settings={"train_file": f"{name}.txt"}, objective=name), MODEL, at='x"\nimport os #')
    assert "<script>" not in text
    assert "\n# &lt;" not in text
    assert "{{ 7 * 7 }}" in text
    assert ModelCard(text).data.to_dict()["license"] == "apache-2.0"
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        assert "\nimport os" not in code
        compile(code, "card", "exec")


@pytest.mark.parametrize(
    ("family", "pooler"), [("bert", "cls"), ("roberta", "avg"), ("bert", "avg_top2"), ("distilbert", "avg_first_last")]
)
def test_the_cards_code_gives_the_models_vectors(family, pooler, tmp_path):
    encoder, tokenizer = SentenceEncoder(build_transformer(family), pooler, False), build_tokenizer()
    encoder.save(tmp_path, tokenizer)
    write_card(tmp_path, {})
    sentences = [*make_sentences(5), " ".join(["cat"] * 100)]  # the last one is longer than the limit
    expected = encoder.encode(sentences, tokenizer)
    blocks = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for code in blocks:
        code = code.replace('"path/to/this/folder"', repr(str(tmp_path)))
        found = {"given": sentences}
        exec(re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE), found)
        torch.testing.assert_close(torch.as_tensor(found["embeddings"]), expected, rtol=0, atol=1e-5)


def test_the_base_is_its_name_and_what_its_card_states(tmp_path):
    base = tmp_path / "my-bert"
    base.mkdir()
    assert describe_base(str(base)) == {"name": "my-bert", "on_hub": False, "license": None}
    (base / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    assert describe_base(f"{base}/")["license"] == "mit"
    (base / "README.md").write_text("---\nlicense: [\n---\n")
    assert describe_base(str(base))["license"] is None
    assert describe_base("no/such-model") == {"name": "no/such-model", "on_hub": True, "license": None}


def test_training_leaves_the_card(tiny_bert, text_file, tmp_path):
    out = tmp_path / "out"
    flags = [
        f"--model_name_or_path={tiny_bert}", f"--train_file={text_file}", "--eval_set=none", f"--output_dir={out}",
        "--max_steps=4", "--train_batch_size=8", "--mixed_precision=no",
    ]  # fmt: skip
    assert train.main(flags) == 0
    card = (out / "README.md").read_text()
    assert "| steps | 4 |" in card
    assert "sentences.txt, the user's own" in card
    assert str(tmp_path) not in card
