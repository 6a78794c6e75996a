"""Make a copy of a trained model that other tools load."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dystress_text.encoders.encoder import AVERAGED, SentenceEncoder, length_limit, load_encoder, pooler_encoder
from dystress_text.encoders.legacy_layout import write_legacy, write_tokenizer
from dystress_text.encoders.pretrained import load_pretrained, pooler_dense
from dystress_text.encoders.saved_model import load_saved, read_saved
from dystress_text.errors import UserError
from dystress_text.export.card import HERE, LAYOUTS, write_card
from dystress_text.files.hub import hub_reachable
from dystress_text.training.run_folder import RECORD

TOLERANCE = 1e-4
OPSET = 18  # what torch's exporter writes without conversion
ONNX_FILE = "model.onnx"
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_PROTOBUF_LIMIT = 2**31 - 2**20  # bytes of one file; weights beyond it go into a second one

# what the copy is checked on: one token to more than the longest input, in batches of odd sizes
PROBES = (
    "Yes.",
    "A man plays a guitar.",
    "Someone is making music on the street while a small crowd listens.",
    "Prices rose 3.4 % in 2019 (the most since 1991), said the bank.",
    "naïve café 東京 🙂",
    "",
    "the old dog ran slowly to the river and the house",
    " ".join(["one two three red blue small big"] * 7),
    " ".join(["A sentence that is longer than any limit of an encoder."] * 120),
)

Write = Callable[[SentenceEncoder, PreTrainedTokenizerBase, Path], None]
Embed = Callable[[Path, SentenceEncoder], Tensor]


@dataclass(frozen=True)
class Exported:
    """A copy that was made.

    Attributes:
        folder: where it lies.
        difference: the largest one between two entries of its vectors and the model's.
    """

    folder: Path
    difference: float


def export(model: Path, to: str, output: Path | None = None, at: str = HERE) -> Exported:
    """Make a copy of a model folder in another layout; it appears whole and checked, or not at all.

    Args:
        model: a folder that training wrote.
        to: one of :data:`dystress_text.export.card.LAYOUTS`.
        output: where the copy goes, a folder that is empty or does not exist; default beside the model.
        at: the name by which the copy's card calls it.

    Raises:
        UserError: no such layout or model, an output that is occupied, a missing package, or vectors that differ.
    """
    if to not in LAYOUTS:
        raise UserError(f"--to: unknown layout {to!r}; known are {', '.join(LAYOUTS)}")
    output = output if output is not None else Path(f"{os.path.abspath(model)}-{to}")
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"--output: {str(output)!r} exists and is not an empty folder; nothing was written")
    if to == "onnx" and (missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]):
        raise UserError(
            f"--to onnx: not installed: {', '.join(missing)}; from the checkout: pip install -c constraints.txt -e "
            "'.[onnx]'"
        )
    saved = read_saved(model)
    record = _read_record(model)
    encoder, tokenizer = load_saved(model)
    encoder.eval()
    tokenizer.model_max_length = length_limit(tokenizer, encoder.transformer)
    write, embed = _LAYOUTS[to]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".export-") as staging:
            folder = Path(staging) / "model"
            folder.mkdir()
            write(encoder, tokenizer, folder)
            write_card(folder, record, saved, to, at)
            for file in folder.rglob("*"):  # some are written for the owner's eyes alone
                if file.is_file():
                    file.chmod((folder / "README.md").stat().st_mode)
            expected = encoder.encode(PROBES, tokenizer)
            assert isinstance(expected, Tensor)
            difference = float((embed(folder, encoder) - expected).abs().max())
            if not difference <= TOLERANCE:  # also where it is no number
                raise UserError(f"--to {to}: the copy's vectors differ by {difference:.2g}; nothing was written")
            folder.rename(output)
    except OSError as error:
        raise UserError(f"--output: cannot write to {str(output)!r}: {error.strerror or error}") from error
    return Exported(output, difference)


def _read_record(model: Path) -> dict[str, Any]:
    """What the run left beside the model; nothing where there is no run.

    Raises:
        UserError: it is damaged.
    """
    if not (model / RECORD).is_file():
        return {}
    try:
        record = json.loads((model / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{str(model / RECORD)!r} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(record, dict):
        raise UserError(f"{str(model / RECORD)!r} is damaged: no record of a run")
    return record


# ---- writing the layouts ---------------------------------------------------------------------------------------------


def _write_native(encoder: SentenceEncoder, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    encoder.transformer.config.output_hidden_states = False  # encoder.save knows which pooler needs them
    encoder.save(folder, tokenizer)


def _write_hf(encoder: SentenceEncoder, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """An encoder alone; its configuration says how it is pooled, and a kept head goes into its own pooler."""
    encoder.transformer.config.output_hidden_states = False
    layers = AVERAGED.get(encoder.pooler_type)
    encoder.transformer.config.sentence_embedding = {
        "pooler_type": encoder.pooler_type,
        "mean_of_hidden_states": list(layers or (-1,)),
        "tokens": "mean" if layers else "first",
        "normalize": encoder.normalize,
    }
    if encoder.keep_head:
        dense = pooler_dense(encoder.transformer)
        if layers or dense is None:
            where = (
                "is on top of a mean over the tokens" if layers else "finds no pooler of dense + tanh in the encoder"
            )
            raise UserError(f"--to hf: this model's head {where}; native, legacy and onnx can hold it")
        dense.load_state_dict(encoder.head_dense.state_dict())
        encoder.transformer.config.sentence_embedding["head"] = "pooler_output"
    encoder.transformer.save_pretrained(folder)
    write_tokenizer(tokenizer, folder)


class _Graph(nn.Module):
    """An encoder as a function of tensors alone."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        vectors: Tensor = self.encoder(input_ids, attention_mask)
        return vectors


def _write_onnx(encoder: SentenceEncoder, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """One graph from token ids and mask to pooled vectors; token types are left at 0, as the encoder has them."""
    encoder.transformer.config.output_hidden_states = False
    graph = _Graph(encoder).eval()
    ids = torch.ones(2, 7, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    weights = sum(tensor.numel() * tensor.element_size() for tensor in graph.state_dict().values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision
        torch.onnx.export(
            graph,
            (ids, mask),
            folder / ONNX_FILE,
            dynamo=True,
            dynamic_shapes=(axes, axes),
            input_names=["input_ids", "attention_mask"],
            output_names=["sentence_embedding"],
            opset_version=OPSET,
            external_data=weights > _PROTOBUF_LIMIT,
            verbose=False,
        )
    encoder.transformer.config.save_pretrained(folder)
    write_tokenizer(tokenizer, folder)


# ---- reading them back as the tools do -------------------------------------------------------------------------------


def _embed_sentence_transformers(folder: Path, encoder: SentenceEncoder) -> Tensor:
    from sentence_transformers import SentenceTransformer  # slow to import

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, trust_remote_code=False)
    vectors: Tensor = model.encode(list(PROBES), batch_size=4, convert_to_tensor=True, show_progress_bar=False)
    return vectors


def _embed_transformers(folder: Path, encoder: SentenceEncoder) -> Tensor:
    if encoder.keep_head:
        found = load_pretrained(str(folder))
        copy, tokenizer = pooler_encoder(found), found.tokenizer
    else:
        copy, tokenizer = load_encoder(str(folder), encoder.pooler_type, mlp_head=False)
    copy.normalize = encoder.normalize
    vectors = copy.encode(PROBES, tokenizer, batch_size=4)
    assert isinstance(vectors, Tensor)
    return vectors


def _embed_onnx(folder: Path, encoder: SentenceEncoder) -> Tensor:
    import onnxruntime

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    session = onnxruntime.InferenceSession(str(folder / ONNX_FILE), providers=["CPUExecutionProvider"])
    parts = []
    for start, stop in ((0, 1), (1, 4), (4, 6), (6, 7), (7, len(PROBES))):
        batch = tokenizer(list(PROBES[start:stop]), padding=True, truncation=True, return_tensors="np")
        inputs = {name: batch[name].astype("int64") for name in ("input_ids", "attention_mask")}
        parts.append(torch.from_numpy(session.run(["sentence_embedding"], inputs)[0]))
    return torch.cat(parts)


_LAYOUTS: dict[str, tuple[Write, Embed]] = {
    "native": (_write_native, _embed_sentence_transformers),
    "hf": (_write_hf, _embed_transformers),
    "legacy": (write_legacy, _embed_sentence_transformers),
    "onnx": (_write_onnx, _embed_onnx),
}


# ---- the hub ---------------------------------------------------------------------------------------------------------


def check_push(repository: str) -> None:
    """See whether a folder could be uploaded, before it is made.

    Raises:
        UserError: the name is none, there is no token, or the hub is out of reach.
    """
    from huggingface_hub import get_token

    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repository, re.ASCII):
        raise UserError(f"--push_to_hub: OWNER/NAME is expected, got {repository!r}")
    if get_token() is None:
        raise UserError("--push_to_hub: no token: log in with `hf auth login`, or set HF_TOKEN")
    if not hub_reachable():
        raise UserError("--push_to_hub: the hub cannot be reached from here (no network, or HF_HUB_OFFLINE is set)")


def push(folder: Path, repository: str, private: bool = False) -> str:
    """Upload a folder to the hub, making the repository where there is none, and return its address.

    Raises:
        UserError: the hub refuses or fails.
    """
    from huggingface_hub import HfApi, get_token

    try:
        api = HfApi()
        address = api.create_repo(repository, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload by dystress-text")
    except Exception as error:  # of the network, the hub or the library
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        reason = reason.replace(get_token() or "\0", "<token>")
        raise UserError(f"--push_to_hub: {reason}. The copy is in {str(folder)!r}") from error
    return str(address)


# ---- the program -----------------------------------------------------------------------------------------------------
