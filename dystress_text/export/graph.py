"""Export a model as one ONNX graph, in fp32 and in int8, and compare the two on a text."""

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

from dystress_text.models.hybrid import embed_padded, hybrid_part

# paths that clients of the hub expect
FILE = "onnx/model.onnx"
INT8_FILE = "onnx/model_quantized.onnx"
NEIGHBOURS = 10
_OPSET = 18  # torch's exporter writes this version without conversion
_AT_ONCE = 32  # texts
_INPUTS = ["input_ids", "attention_mask"]
_OUTPUTS = ["last_hidden_state", "sentence_embedding"]


class _Graph(nn.Module):
    """Compute a model from tensors only."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model
        self.hybrid = hybrid_part(model)
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
        first = self.model[0]
        if isinstance(first, StaticEmbedding):
            features["token_embeddings"] = F.embedding(input_ids, first.embedding.weight)
            features = Pooling(first.embedding_dim, "mean")(features)
            for module in list(self.model)[1:]:
                features = module(features)
        elif self.hybrid is not None:
            features["sentence_embedding"] = embed_padded(self.hybrid, input_ids, attention_mask)
        else:
            features = self.model(features)
        embeddings = features["sentence_embedding"]
        if self.pools_states:
            return features["token_embeddings"], embeddings
        return embeddings.unsqueeze(1).expand(-1, input_ids.shape[1], -1), embeddings


def write_graph(model: SentenceTransformer, folder: Path) -> None:
    """Write the graph of token ids and mask, both (n, length); token types are 0.

    Clients that pool the states themselves get the same embeddings: the states are the mean of the
    layers, or, if an embedding is not the mean of its tokens, each state is the embedding.
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
            _Graph(model).eval(), (ids, mask), dynamo=True, dynamic_shapes=(axes, axes),
            input_names=_INPUTS, output_names=_OUTPUTS, opset_version=_OPSET, verbose=False,
        )  # fmt: skip
    for node in program.model.graph.all_nodes():  # which name paths of this machine
        node.metadata_props.clear()
    (folder / FILE).parent.mkdir()
    program.save(str(folder / FILE))  # weights above 2 GB lie in a second file


def graph_vectors(folder: Path, texts: Sequence[str], file: str = FILE) -> Tensor:
    """Return a graph's embeddings of texts, (n, dim), tokenised by the folder's tokenizer."""
    import onnxruntime

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    session = onnxruntime.InferenceSession(str(folder / file), providers=["CPUExecutionProvider"])
    vectors = []
    for start in range(0, len(texts), _AT_ONCE):
        some = list(texts[start : start + _AT_ONCE])
        batch = tokenizer(some, padding=True, truncation=True, return_tensors="np")
        inputs = {name: batch[name].astype("int64") for name in _INPUTS}
        vectors.append(torch.from_numpy(session.run(["sentence_embedding"], inputs)[0]))
    return torch.cat(vectors)


def quantize(folder: Path) -> None:
    """Write the graph with int8 weights too, by ONNX Runtime's dynamic quantization."""
    from onnxruntime.quantization import quantize_dynamic

    logging.disable(logging.WARNING)  # it recommends a step for images
    try:
        quantize_dynamic(folder / FILE, folder / INT8_FILE)
    finally:
        logging.disable(logging.NOTSET)


def int8_loss(folder: Path, texts: Sequence[str]) -> str:
    """Describe in a line how far the int8 graph is from the fp32 one on at least two texts."""
    exact = F.normalize(graph_vectors(folder, texts, FILE), dim=1)  # (n, dim)
    rough = F.normalize(graph_vectors(folder, texts, INT8_FILE), dim=1)  # (n, dim)
    cosines = (exact * rough).sum(1)  # (n,)
    count = min(NEIGHBOURS, len(texts) - 1)
    expected = _nearest(exact, count)  # (n, count)
    found = _nearest(rough, count)  # (n, count)
    kept = (expected.unsqueeze(2) == found.unsqueeze(1)).any(2).float().mean()
    first = (expected[:, 0] == found[:, 0]).float().mean()
    before, after = ((folder / file).stat().st_size / 1e6 for file in (FILE, INT8_FILE))
    return (
        f"int8: {before:.1f} MB to {after:.1f} MB; on {len(texts):,} texts cosine "
        f"{cosines.mean():.4f}, at least {cosines.min():.4f}; of the {count} nearest "
        f"{100 * kept:.1f} % are kept, of the nearest {100 * first:.1f} %"
    )


def _nearest(units: Tensor, count: int) -> Tensor:
    """Return the nearest other rows of (n, dim), (n, count)."""
    return (units @ units.T).fill_diagonal_(-2).topk(count).indices
