"""LoRA: what trains, the merged model, the packed pass, and what peft reads."""

import json

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from peft import PeftModel
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from dystress_text.cli import extras
from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.loading import load_saved
from dystress_text.errors import ParameterError
from dystress_text.programs.train import main
from dystress_text.simcse.settings import TextSettings
from dystress_text.simcse.start import load_start

SENTENCES = make_sentences(8)


def trained_adapters(family="bert", **options):
    """An encoder whose adapters are far from where they start."""
    encoder = SentenceEncoder(build_transformer(family), "cls", True, keep_head=True)
    torch.manual_seed(1)
    encoder.add_lora(3, **options)
    for name, parameter in encoder.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return encoder


@pytest.mark.parametrize(
    ("family", "targets", "layers"),
    [("roberta", None, ("query", "value")), ("mpnet", ["attn.q", "attn.k"], ("q", "k")),
     ("modernbert", ["Wqkv", "Wo"], ("Wqkv", "Wo"))],
)  # fmt: skip
def test_merging_gives_the_adapters_vectors(family, targets, layers, tmp_path, tokenizer):
    encoder = trained_adapters(family, target_modules=targets)
    found = {name.split(".lora_A")[0].rsplit(".", 1)[-1] for name, _ in encoder.named_parameters() if ".lora_A" in name}
    assert found == set(layers)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    expected = encoder.encode(SENTENCES, tokenizer)
    encoder.save(tmp_path, tokenizer)
    own, its_tokenizer = load_saved(tmp_path)
    torch.testing.assert_close(own.encode(SENTENCES, its_tokenizer), expected, rtol=0, atol=1e-5)
    assert not any("lora" in name for name in load_file(tmp_path / "model.safetensors"))
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())  # it trains on


@pytest.mark.parametrize(("alpha", "scale"), [(None, 2.0), (5.0, 5 / 3)])
def test_the_merged_weight_is_the_formula(alpha, scale, tmp_path, tokenizer):
    """W + alpha / rank * B A, in fp64; alpha is twice the rank unless it is given."""
    encoder = trained_adapters(alpha=alpha)
    encoder.save(tmp_path, tokenizer)
    layer = encoder.transformer.encoder.layer[1].attention.self.query
    a, b = (getattr(layer, f"lora_{name}")["default"].weight.detach().double().numpy() for name in "AB")
    expected = layer.get_base_layer().weight.detach().double().numpy() + scale * b @ a
    found = load_file(tmp_path / "model.safetensors")["encoder.layer.1.attention.self.query.weight"]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)


def test_adapters_and_the_head_train_alone(tiny_bert):
    start = load_start(TextSettings(model_name_or_path=str(tiny_bert), lora_rank=4))
    trained = {name: p for name, p in start.model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name or name.startswith("head.") for name in trained)
    count = 3 * 2 * 2 * 4 * 16 + 16 * 16 + 16  # layers, query and value, A and B; the head
    base = sum(p.numel() for p in AutoModel.from_pretrained(tiny_bert).parameters())
    assert start.about["parameters"] == {"trained": count, "all": base + count}
    assert sum(p.numel() for p in trained.values()) == count


def test_a_run_trains_adapters_and_leaves_an_ordinary_model(flags, tiny_bert, tmp_path):
    assert main([*flags, "--lora_rank=4", "--learning_rate=1e-2", "--lora_dropout=0.1", "--merge_lora=no"]) == 0
    out = tmp_path / "out"
    old, new = load_file(tiny_bert / "model.safetensors"), load_file(out / "model.safetensors")
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed == {f"encoder.layer.{i}.attention.self.{k}.weight" for i in range(3) for k in ("query", "value")}
    # peft puts the adapter onto the base, and plain transformers computes the model's vectors with it
    adapted = PeftModel.from_pretrained(AutoModel.from_pretrained(tiny_bert), str(out / "adapter")).eval()
    encoded = build_tokenizer()(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        first = adapted(**encoded).last_hidden_state[:, 0]
    vectors = SentenceTransformer(str(out), device="cpu").encode(SENTENCES, convert_to_tensor=True)
    torch.testing.assert_close(vectors, first, rtol=0, atol=1e-5)
    files = {path.name: path for path in (out / "adapter").iterdir()}
    assert files.keys() == {"adapter_config.json", "adapter_model.safetensors"}
    assert json.loads(files["adapter_config.json"].read_text())["base_model_name_or_path"] == tiny_bert.name
    assert "| lora rank | 4 |" in (out / "README.md").read_text()


def test_layers_that_cannot_have_adapters(flags, capsys, monkeypatch):
    with pytest.raises(ParameterError, match="lora_target_modules: give the names of linear layers"):
        SentenceEncoder(build_transformer("mpnet")).add_lora(2)
    with pytest.raises(ParameterError, match="word_embeddings is not a linear layer"):
        SentenceEncoder(build_transformer("bert")).add_lora(2, target_modules=["word_embeddings"])
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert main([*flags, "--lora_rank=2"]) == 2
    assert "lora_rank needs peft: pip install -c " in capsys.readouterr().err
