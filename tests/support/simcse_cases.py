"""Checkpoints as SimCSE's training and its conversion script leave them, and their vectors by hand."""

import json

import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from safetensors.torch import save_file

SENTENCES = [
    *make_sentences(9),
    " ".join(["cat"] * 100),
]  # the last one is longer than the 40 positions
ARCHITECTURE = {"bert": "BertForCL", "roberta": "RobertaForCL"}


def simcse_folder(folder, family="bert", raw=True, suffix="bin"):
    """A checkpoint as SimCSE's training leaves it, or as its conversion script makes it; returns
    its parts.
    """
    transformer = build_transformer(family)
    torch.manual_seed(5)
    mlp = torch.nn.Linear(16, 16)
    states = {
        name: t for name, t in transformer.state_dict().items() if not name.startswith("pooler.")
    }
    if raw:
        states = {f"{family}.{name}": tensor for name, tensor in states.items()}
        states |= {f"mlp.dense.{name}": tensor.detach() for name, tensor in mlp.named_parameters()}
        states |= {
            f"{family}.embeddings.position_ids": torch.arange(40)[None],
            "lm_head.bias": torch.zeros(3),
        }
    else:
        states |= {
            f"pooler.dense.{name}": tensor.detach() for name, tensor in mlp.named_parameters()
        }
    folder.mkdir()
    config = transformer.config.to_dict()
    config["architectures"] = [ARCHITECTURE[family] if raw else type(transformer).__name__]
    (folder / "config.json").write_text(json.dumps(config))
    if suffix == "bin":
        torch.save(states, folder / "pytorch_model.bin")
    else:
        save_file(states, folder / "model.safetensors", metadata={"format": "pt"})
    build_tokenizer().save_pretrained(folder)
    return transformer.eval(), mlp


@torch.no_grad()
def by_hand(transformer, mlp=None):
    """The first token of plain transformers, through the MLP if there is one."""
    batch = build_tokenizer()(
        SENTENCES, padding=True, truncation=True, max_length=40, return_tensors="pt"
    )
    first = transformer(**batch).last_hidden_state[:, 0]
    return first if mlp is None else torch.tanh(first @ mlp.weight.T + mlp.bias)


def close(vectors, expected):
    torch.testing.assert_close(torch.as_tensor(vectors), expected, rtol=0, atol=1e-5)
