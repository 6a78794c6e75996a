"""LoRA: what trains, and the merged model."""

import json

import numpy as np
import pytest
import torch
from model_cases import TEXTS, build_model
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from dystress_text.errors import ParameterError
from dystress_text.models.embedder import Embedder, encode
from dystress_text.models.lora import add_adapters
from dystress_text.programs.train import main


@pytest.mark.parametrize(("family", "pooler"), [("roberta", "cls"), ("gpt2", "last")])
def test_merged_weights_equal_the_formula(family, pooler, tmp_path):
    """W + 2 B A, in fp64; GPT-2's weights are transposed."""
    embedder = Embedder(build_model(family, pooler, head=True))
    add_adapters(embedder.model[0].model, 3)
    for name, parameter in embedder.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    before = {name: tensor.clone() for name, tensor in embedder.state_dict().items()}
    expected = encode(embedder.model, TEXTS)
    embedder.save(tmp_path)
    after = embedder.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())  # it trains on
    saved = SentenceTransformer(str(tmp_path), device="cpu")
    found = torch.as_tensor(saved.encode(TEXTS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    merged = load_file(tmp_path / "model.safetensors")
    assert not any("lora" in name for name in merged)
    layer = "h.1.attn.c_attn" if family == "gpt2" else "encoder.layer.1.attention.self.query"
    a, b = (
        before[f"model.0.model.{layer}.lora_{name}.default.weight"].double().numpy()
        for name in "AB"
    )
    product = (b @ a).T if family == "gpt2" else b @ a
    base = before[f"model.0.model.{layer}.base_layer.weight"].double().numpy()
    np.testing.assert_allclose(
        merged[f"{layer}.weight"].numpy(), base + 2 * product, rtol=0, atol=1e-6
    )


def test_run_trains_adapters_only(flags, tiny_bert, tmp_path):
    assert main([*flags, "--lora=4", "--learning_rate=1e-2"]) == 0
    out = tmp_path / "out"
    old, new = load_file(tiny_bert / "model.safetensors"), load_file(out / "model.safetensors")
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed == {
        f"encoder.layer.{i}.attention.self.{k}.weight" for i in range(3) for k in ("query", "value")
    }
    count = 3 * 2 * 2 * 4 * 16 + 16 * 16 + 16  # layers, query and value, A and B; the head
    base = sum(p.numel() for p in AutoModel.from_pretrained(tiny_bert).parameters())
    parameters = json.loads((out / "run.json").read_text())["parameters"]
    assert parameters == {"trained": count, "all": base + count}


def test_unknown_family_is_rejected():
    with pytest.raises(ParameterError, match="lora"):
        add_adapters(build_model("mpnet")[0].model, 2)
