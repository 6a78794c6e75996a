"""Export an encoder or a static model as one ONNX graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding
from torch import Tensor, nn

FILE = "onnx/model.onnx"  # where clients of the hub look for it
_OPSET = 18  # torch's exporter writes this version without conversion
_INPUTS = ["input_ids", "attention_mask"]
_OUTPUTS = ["last_hidden_state", "sentence_embedding"]


class _Graph(nn.Module):
    """Compute a model from tensors only."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model
        modes = [module.pooling_mode for module in model if isinstance(module, Pooling)]
        heads = [module for module in model if isinstance(module, Dense)]
        self.pools_states = modes == ["mean"] and not heads

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return states (n, length, dim), and embeddings (n, dim), which are the states pooled."""
        features: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "modality": "text",
        }
        first, *others = self.model
        if isinstance(first, StaticEmbedding):
            features["token_embeddings"] = F.embedding(input_ids, first.embedding.weight)
            others.insert(0, Pooling(first.embedding_dim, "mean"))
        else:
            features = first(features)
        for module in others:
            features = module(features)
        embeddings = features["sentence_embedding"]
        if self.pools_states:
            return features["token_embeddings"], embeddings
        return embeddings.unsqueeze(1).expand(-1, input_ids.shape[1], -1), embeddings


def write_graph(model: SentenceTransformer, folder: Path) -> None:
    """Write the graph of token ids and mask, both (n, length); token types are 0.

    Clients that pool the states themselves get the same embeddings: the states are the mean of the
    layers, or, if an embedding is not the mean of its tokens, each state is the embedding.

    Args:
        model: with a transformer or a static table as its first module.
        folder: of the copy; the graph is ``onnx/model.onnx`` in it.
    """
    ids = torch.ones(2, 7, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # it warns that torchvision is missing
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program: Any = torch.onnx.export(
            _Graph(model).eval(),
            (ids, mask),
            dynamo=True,
            dynamic_shapes=(axes, axes),
            input_names=_INPUTS,
            output_names=_OUTPUTS,
            opset_version=_OPSET,
            verbose=False,
        )
    for node in program.model.graph.all_nodes():  # which name paths of this machine
        node.metadata_props.clear()
    (folder / FILE).parent.mkdir()
    program.save(str(folder / FILE))  # weights above 2 GB go to a second file


def graph_vectors(folder: Path, texts: Sequence[str]) -> Tensor:
    """Return a graph's embeddings of texts, (n, dim), tokenised by the folder's tokenizer."""
    import onnxruntime

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    session = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    batch = tokenizer(list(texts), padding=True, truncation=True, return_tensors="np")
    inputs = {name: batch[name].astype("int64") for name in _INPUTS}
    return torch.from_numpy(session.run(["sentence_embedding"], inputs)[0])
