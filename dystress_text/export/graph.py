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
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tokenizers import Tokenizer
from torch import Tensor, nn

from dystress_text.errors import ParameterError

FILE = "onnx/model.onnx"  # the hub's clients expect it there
_POOLING = "1_Pooling"  # sentence-transformers' folder of a second module that pools
_OPSET = 18  # torch's exporter needs no conversion for this version
_INPUTS = ["input_ids", "attention_mask"]
_OUTPUTS = ["last_hidden_state", "sentence_embedding"]


class _Graph(nn.Module):
    """A model as a function from tensors to tensors."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings, repeated for each token, (n, length, dim), and once, (n, dim)."""
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
        embeddings = features["sentence_embedding"][:, : self.model.truncate_dim]
        return embeddings.unsqueeze(1).expand(-1, input_ids.shape[1], -1), embeddings


def write_graph(model: SentenceTransformer, folder: Path) -> None:
    """Write a model as ``onnx/model.onnx`` in ``folder``.

    The graph's inputs are token ids and a mask, (n, length) each. Its outputs are embeddings,
    (n, dim), and a copy of the embedding for each token, so that any pooling returns it.

    Args:
        model: a model whose first module is a ``Transformer`` or a ``StaticEmbedding``.
        folder: the folder of the copy.
    """
    ids = torch.ones(2, 7, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # the exporter warns that torchvision is missing
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
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # they contain paths of this machine
    (folder / FILE).parent.mkdir()
    program.save(str(folder / FILE))  # weights above 2 GB go to a second file


def graph_vectors(folder: Path, texts: Sequence[str]) -> Tensor:
    """Return a copy's embeddings of texts in each way that users can compute them, (ways, n, dim).

    These are the graph's embeddings and, if sentence-transformers reads the copy, its states after
    pooling.
    """
    import onnxruntime

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    batch = tokenizer(list(texts), padding=True, truncation=True, return_tensors="np")
    inputs = {name: batch[name].astype("int64") for name in _INPUTS}
    file = folder / "tokenizer.json"
    if file.is_file():  # software without transformers reads it alone
        encodings = Tokenizer.from_file(str(file)).encode_batch(list(texts))
        if [encoding.ids for encoding in encodings] != inputs["input_ids"].tolist():
            raise ParameterError("to", f"{file.name} alone gives other tokens than transformers")
    session = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    states, *embeddings = map(torch.from_numpy, session.run(_OUTPUTS, inputs))
    if (folder / _POOLING).is_dir():
        features = {"token_embeddings": states, "attention_mask": torch.tensor(inputs[_INPUTS[1]])}
        pooled = Pooling.load(str(folder), subfolder=_POOLING)(features)
        embeddings.append(pooled["sentence_embedding"])
    return torch.stack(embeddings)
