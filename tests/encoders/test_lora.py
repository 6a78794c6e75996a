"""LoRA: what trains, the merged model, the packed pass, and what peft reads."""

import json

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from dystress_text.cli import extras
from dystress_text.encoders.encoder import SentenceEncoder, load_encoder
from dystress_text.encoders.lora import add_lora, merged
from dystress_text.encoders.saved_model import load_saved
from dystress_text.errors import ParameterError
from dystress_text.simcse.settings import TextSettings
from dystress_text.simcse.start import load_start
from dystress_text.train import main

SENTENCES = make_sentences(8)
LORA = ["--lora_rank=4", "--learning_rate=1e-2"]


def trained_adapters(family="bert", pooler="cls", **options):
    """An encoder whose adapters are far from where they start."""
    encoder = SentenceEncoder(build_transformer(family), pooler, True, keep_head=True)
    torch.manual_seed(1)
    adapted = add_lora(encoder.transformer, 3, **options)
    encoder.adapt(adapted)
    for name, parameter in encoder.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return encoder, adapted


def batch(tokenizer):
    encoded = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    return encoded["input_ids"][encoded["attention_mask"].bool()], encoded["attention_mask"]


@pytest.mark.parametrize(
    ("family", "targets", "layers"),
    [("roberta", None, ("query", "value")), ("mpnet", ["attn.q", "attn.k"], ("q", "k")),
     ("modernbert", ["Wqkv", "Wo"], ("Wqkv", "Wo"))],
)  # fmt: skip
def test_merging_gives_the_adapters_vectors(family, targets, layers, tmp_path, tokenizer):
    encoder, _ = trained_adapters(family, target_modules=targets)
    found = {name.split(".lora_A")[0].rsplit(".", 1)[-1] for name, _ in encoder.named_parameters() if ".lora_A" in name}
    assert found == set(layers)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    expected = encoder.encode(SENTENCES, tokenizer)
    bare = SentenceEncoder(build_transformer(family), "cls", False).encode(SENTENCES, tokenizer)
    assert (encoder.encode_by_pooler(SENTENCES, tokenizer, ["cls"])["cls"] - bare).abs().max() > 1e-2
    encoder.save(tmp_path, tokenizer)
    own, its_tokenizer = load_saved(tmp_path)
    torch.testing.assert_close(own.encode(SENTENCES, its_tokenizer), expected, rtol=0, atol=1e-5)
    assert not any("lora" in name for name in load_file(tmp_path / "model.safetensors"))
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())  # it trains on


@pytest.mark.parametrize(("alpha", "scale"), [(None, 2.0), (5.0, 5 / 3)])
def test_the_merged_weight_is_the_formula(alpha, scale):
    """W + alpha / rank * B A, in fp64; alpha is twice the rank unless it is given."""
    encoder, adapted = trained_adapters(alpha=alpha)
    layer = encoder.transformer.encoder.layer[1].attention.self.query
    a, b = (getattr(layer, f"lora_{name}")["default"].weight.detach().double().numpy() for name in "AB")
    expected = layer.get_base_layer().weight.detach().double().numpy() + scale * b @ a
    found = merged(adapted).encoder.layer[1].attention.self.query.weight.detach()
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("family", "pooler"), [("bert", "cls"), ("roberta", "avg_first_last")])
def test_the_packed_pass_sees_the_adapters(family, pooler, tokenizer):
    """Vectors and gradients of the packed pass are those of transformers' own; dropout is off."""
    encoder, _ = trained_adapters(family, pooler, target_modules=["query", "key", "value", "dense"])
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids, mask = batch(tokenizer)
    weights = torch.randn(len(SENTENCES), 16, generator=torch.Generator().manual_seed(2))
    results = []
    for packed in (False, True):
        encoder.zero_grad()
        vectors = encoder.train()(ids, mask, packed)
        (vectors * weights).sum().backward()
        gradients = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}
        results.append((vectors.detach(), gradients))
    (plain, plain_gradients), (packed, packed_gradients) = results
    torch.testing.assert_close(packed, plain, rtol=0, atol=1e-5)
    assert plain_gradients.keys() == packed_gradients.keys()
    assert all("lora_" in name or name.startswith("head.") for name in plain_gradients)
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(packed_gradients[name], gradient, rtol=1e-3, atol=1e-4)


def test_adapters_and_the_head_train_alone(tiny_bert):
    start = load_start(TextSettings(model_name_or_path=str(tiny_bert), lora_rank=4))
    trained = {name: p for name, p in start.model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name or name.startswith("head.") for name in trained)
    count = 3 * 2 * 2 * 4 * 16 + 16 * 16 + 16  # layers, query and value, A and B; the head
    base = sum(p.numel() for p in AutoModel.from_pretrained(tiny_bert).parameters())
    assert start.about["parameters"] == {"trained": count, "all": base + count}
    assert sum(p.numel() for p in trained.values()) == count


def test_a_run_trains_adapters_and_leaves_an_ordinary_model(flags, tiny_bert, tmp_path):
    assert main([*flags, *LORA, "--lora_dropout=0.1", "--merge_lora=no"]) == 0
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
    assert "LoRA adapters of rank 4, " in (out / "README.md").read_text()


def test_a_gradient_step_is_pefts_own(tiny_bert, tokenizer):
    """The gradient of a plain peft model, without any of our layers, is that of the adapters here."""
    ours, _ = load_encoder(str(tiny_bert), "cls", mlp_head=False, dropout=0.0)
    ours.adapt(add_lora(ours.transformer, 2))
    ids, mask = batch(tokenizer)
    ours.train()(ids, mask, True).square().sum().backward()
    plain = AutoModel.from_pretrained(tiny_bert, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    plain = get_peft_model(plain, LoraConfig(r=2, lora_alpha=4)).train()
    own = {name: p for name, p in ours.transformer.named_parameters() if ".lora_" in name}
    theirs = {name: p for name, p in plain.base_model.model.named_parameters() if name in own}
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(own[name])
    padded = torch.zeros_like(mask).masked_scatter(mask.bool(), ids)
    plain(padded, attention_mask=mask).last_hidden_state[:, 0].square().sum().backward()
    assert len(own) == len(theirs) == 12
    for name, parameter in theirs.items():
        torch.testing.assert_close(own[name].grad, parameter.grad, rtol=1e-3, atol=1e-5)


def test_layers_that_cannot_have_adapters(flags, capsys, monkeypatch):
    with pytest.raises(ParameterError, match="lora_target_modules: give the names of linear layers"):
        add_lora(build_transformer("mpnet"), 2)
    with pytest.raises(ParameterError, match="word_embeddings is not a linear layer"):
        add_lora(build_transformer("bert"), 2, target_modules=["word_embeddings"])
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert main([*flags, "--lora_rank=2"]) == 2
    assert "lora_rank needs peft: pip install 'dystress-text[lora]'" in capsys.readouterr().err
