"""Checkpoints of SimCSE's training and conversion script, and their embeddings by transformers."""

import json

import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from safetensors.torch import save_file

LONG = " ".join(["cat"] * 100)  # longer than the 40 positions
SENTENCES = [*make_sentences(9), LONG]
ARCHITECTURE = {"bert": "BertForCL", "roberta": "RobertaForCL"}


def simcse_folder(folder, family="bert", raw=True, suffix="bin"):
    """Write a checkpoint of SimCSE's training (``raw``) or conversion; return encoder and MLP."""
    transformer = build_transformer(family)
    torch.manual_seed(5)
    mlp = torch.nn.Linear(16, 16)
    prefix = f"{family}." if raw else ""
    head = "mlp.dense." if raw else "pooler.dense."
    states = {}
    for name, tensor in transformer.state_dict().items():
        if not name.startswith("pooler."):
            states[prefix + name] = tensor
    for name, tensor in mlp.state_dict().items():
        states[head + name] = tensor
    if raw:
        states[f"{family}.embeddings.position_ids"] = torch.arange(40)[None]
        states["lm_head.bias"] = torch.zeros(3)
    build_tokenizer().save_pretrained(folder)
    config = transformer.config.to_dict()
    config["architectures"] = [ARCHITECTURE[family] if raw else type(transformer).__name__]
    (folder / "config.json").write_text(json.dumps(config))
    if suffix == "bin":
        torch.save(states, folder / "pytorch_model.bin")
    else:
        save_file(states, folder / "model.safetensors", metadata={"format": "pt"})
    return transformer.eval(), mlp


@torch.no_grad()
def by_hand(transformer, mlp=None):
    """Return the first token's state by transformers, through the MLP if there is one."""
    batch = build_tokenizer()(
        SENTENCES, padding=True, truncation=True, max_length=40, return_tensors="pt"
    )
    first = transformer(**batch).last_hidden_state[:, 0]
    return first if mlp is None else torch.tanh(mlp(first))


def close(vectors, expected):
    torch.testing.assert_close(torch.as_tensor(vectors), expected, rtol=0, atol=1e-5)
