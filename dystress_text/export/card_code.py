"""Code on a model's card: how each consumer gets its vectors."""

from __future__ import annotations

from collections.abc import Iterable

from dystress_text.encoders.pooling import AVERAGED
from dystress_text.encoders.saved_model import SavedModel

_SENTENCES = 'sentences = ["A man plays a guitar.", "Someone is making music."]'

_SENTENCE_TRANSFORMERS = """\
from sentence_transformers import SentenceTransformer, util

model = SentenceTransformer({location})
{sentences}
embeddings = model.encode(sentences)
print(embeddings.shape, util.cos_sim(embeddings, embeddings))
"""

_TRANSFORMERS = """\
import torch
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({location})
model = AutoModel.from_pretrained({location}).eval()
{sentences}
batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
mask = batch["attention_mask"]
with torch.no_grad():
    output = model(batch["input_ids"], attention_mask=mask, output_hidden_states=True)
{pooling}
print(embeddings.shape, torch.cosine_similarity(embeddings[0], embeddings[1], dim=0))
"""

_ONNX = """\
import onnxruntime
from transformers import AutoTokenizer

folder = {location}
tokenizer = AutoTokenizer.from_pretrained(folder)
session = onnxruntime.InferenceSession(f"{{folder}}/model.onnx", providers=["CPUExecutionProvider"])
{sentences}
batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="np")
inputs = {{name: batch[name].astype("int64") for name in ("input_ids", "attention_mask")}}
embeddings = session.run(["sentence_embedding"], inputs)[0]
print(embeddings.shape)
"""

_MEAN = """\
weights = mask.unsqueeze(-1).to(states.dtype)
embeddings = (states * weights).sum(1) / weights.sum(1)"""


def usage(model: SavedModel, layout: str, at: str) -> Iterable[str]:
    """Paragraphs with the code for each library that reads a copy of a model.

    Args:
        model: what the copy holds.
        layout: of the copy, one of :data:`dystress_text.export.card.LAYOUTS`.
        at: where the copy lies, as the code is to name it.
    """
    fill = {"location": _quoted(at), "sentences": _SENTENCES}
    if layout == "native":
        code = _SENTENCE_TRANSFORMERS.format(**fill)
        yield f"With sentence-transformers, from version 2.2 on:\n\n```python\n{code}```"
    if layout == "onnx":
        code = _ONNX.format(**fill)
        yield f"With ONNX Runtime; `sentence_embedding` is pooled already:\n\n```python\n{code}```"
    elif layout != "hf" and model.dense is not None:
        yield f"The dense layer is a module of its own ({model.dense}), which transformers alone does not apply."
    else:
        code = _TRANSFORMERS.format(**fill, pooling=_pooling_code(model))
        part = "the embedding is `pooler_output`" if model.dense is not None else "pooling is the caller's part"
        yield f"With transformers alone, where {part}:\n\n```python\n{code}```"


def _pooling_code(model: SavedModel) -> str:
    code = "embeddings = output.pooler_output" if model.dense is not None else _token_code(model.pooler_type)
    return code + ("\nembeddings = torch.nn.functional.normalize(embeddings, dim=1)" if model.normalize else "")


def _token_code(pooler_type: str) -> str:
    if pooler_type not in AVERAGED:
        return "embeddings = output.last_hidden_state[:, 0]  # the first token"
    # the last layer by its own name: hidden_states[-1] of transformers 4 lacks the last norm of ModernBERT
    layers = [
        "output.last_hidden_state" if layer == -1 else f"output.hidden_states[{layer}]"
        for layer in AVERAGED[pooler_type]
    ]
    states = layers[0] if len(layers) == 1 else f"({' + '.join(layers)}) / {len(layers)}"
    return f"states = {states}  # (sentences, tokens, dimension)\n{_MEAN}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").replace("`", "'") + '"'
