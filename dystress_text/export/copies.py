"""Copy a trained model to layouts that other tools load, and upload it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from huggingface_hub import HfApi, get_token
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
)
from torch import Tensor, nn

from dystress_text.cli.extras import require
from dystress_text.cli.options import check_names
from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.evaluation.embedder import OWN_POOLER, with_pooler
from dystress_text.export.card import CARD, HERE, describe_base, read_card, write_card
from dystress_text.export.compatible import write_compatible, write_config, write_tokenizer
from dystress_text.export.graph import graph_vectors, int8_loss, quantize, write_graph
from dystress_text.export.results import carry_results
from dystress_text.io.atomic import atomic_folder, write_text
from dystress_text.io.hub import hub_reachable
from dystress_text.io.paths import EMBEDDED_MODEL, model_name, model_path
from dystress_text.models.embedder import encode, prompt_of, tokenize
from dystress_text.models.hybrid import hybrid_part, onnx_files, save_hybrid
from dystress_text.models.loading import (
    MODULES,
    load_encoder,
    load_sentence_transformer,
    pooler_dense,
    prompts_of,
    transformer_of,
)
from dystress_text.models.poolers import FIRST, pooler_of
from dystress_text.models.static import is_static, pretrained_tokenizer
from dystress_text.training.run_folder import RECORD, read_run
from dystress_text.training.run_record import BaseModel, RunRecord

TOLERANCE = 1e-4

# texts on which a copy is checked: from one token to more than the longest input
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


def export(
    model: Path,
    to: str,
    output: Path | None = None,
    at: str = HERE,
    int8_on: Sequence[str] | None = None,
) -> tuple[Path, float]:
    """Copy a model folder to a layout; the copy is complete and checked, or not made at all.

    Args:
        model: folder of a trained model, or the name of the small encoder of the package.
        to: the layout, ``native``, ``hf`` or ``onnx``.
        output: an empty or new folder; by default a sibling of the model.
        at: the copy's name on its card.
        int8_on: texts; an ONNX copy then gets a second graph in int8, and the loss on these texts
            is printed.

    Returns:
        The copy's folder, and the largest difference between an entry of its embeddings and the
        model's.
    """
    check_names("to", [to], _LAYOUTS)
    if to == "onnx":
        require("onnx", "--to onnx")
    elif int8_on is not None:
        raise ParameterError("quantize", "needs --to onnx")
    name = model_name(str(model))
    if output is None:  # by name: not into the package, where the small encoder is
        output = Path(f"{os.path.abspath(name)}-{to}")
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ParameterError(
            "output", f"{str(output)!r} exists and is not an empty folder; nothing was written"
        )
    is_users_folder = str(model) == name and model.is_dir()
    if name == EMBEDDED_MODEL and not is_users_folder:
        model = Path(model_path(name))
        trained = with_pooler(load_encoder(str(model)), "avg")
    elif (model / MODULES).is_file():
        trained = load_sentence_transformer(str(model))
    else:
        raise UserError(f"{str(model)!r} is not a model of dystress train: it has no {MODULES}")
    trained.eval()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(output) as folder:
            difference = _write_checked(model, trained, folder, to, at)
            if int8_on is not None:
                quantize(folder)
                print(int8_loss(folder, int8_on), flush=True)
    except OSError as error:
        reason = f"cannot write to {str(output)!r}: {error.strerror or error}"
        raise ParameterError("output", reason) from error
    return output, difference


def _write_checked(
    model: Path, trained: SentenceTransformer, folder: Path, to: str, at: str
) -> float:
    """Write a copy with its card; return how far its embeddings are from the model's."""
    write, embed = _LAYOUTS[to]
    probes: Sequence[str] = PROBES
    if not is_static(trained):  # no tokens have no embedding of their own, or none at all
        probes = [text for text in PROBES if tokenize(trained, [text])[1] != [0]]
    expected = encode(trained, probes).cpu()  # (probes, dim), before a layout changes the model
    write(trained, folder)
    _write_card_of_copy(model, trained, folder, to, at)
    for file in folder.rglob("*"):  # some libraries write for the owner's eyes alone
        if file.is_file():
            file.chmod((folder / CARD).stat().st_mode)
    difference = float((embed(folder, trained, probes) - expected).abs().max())
    if not difference <= TOLERANCE:  # a NaN is refused too
        raise ParameterError(
            "to", f"the {to} copy's vectors differ by {difference:.2g}; nothing was written"
        )
    return difference


def _write_card_of_copy(
    model: Path, trained: SentenceTransformer, folder: Path, to: str, at: str
) -> None:
    card = folder / CARD
    own = model / CARD
    if to == "native" and own.is_file():  # it may be edited
        write_text(card, read_card(own).replace(json.dumps(HERE), json.dumps(at)))
        return
    record = RunRecord()
    if not (model / MODULES).is_file():  # an encoder alone
        record = RunRecord(base_model=BaseModel(**describe_base(str(model))))
    elif (model / RECORD).is_file():
        record = read_run(model)
    write_card(folder, record, trained, to, at)
    if own.is_file():
        carry_results(own, card)


def _write_native(model: SentenceTransformer, folder: Path) -> None:
    if hybrid_part(model) is not None:
        save_hybrid(model, folder)
    else:
        write_compatible(model, folder)


def _write_hf(model: SentenceTransformer, folder: Path) -> None:
    """Write the encoder; a head becomes the encoder's own pooler, and the card says how to pool."""
    first = model[0]
    if not isinstance(first, Transformer):
        raise ParameterError(
            "to", f"transformers has no {type(first).__name__}; native and onnx can hold it"
        )
    pooler = pooler_of(model)
    if pooler is None:
        raise ParameterError("to", "hf cannot hold this pooling; native and onnx can")
    transformer = transformer_of(first)
    heads = [module for module in model if isinstance(module, Dense)]
    if heads:
        dense = pooler_dense(transformer)
        if pooler not in FIRST or dense is None or len(heads) > 1:
            raise ParameterError("to", "hf cannot hold this model's head; native and onnx can")
        dense.load_state_dict(heads[0].linear.state_dict())
    transformer.config.output_hidden_states = False
    transformer.save_pretrained(folder)
    write_config(transformer.config, folder)
    write_tokenizer(first.tokenizer, folder)


def _write_onnx(model: SentenceTransformer, folder: Path) -> None:
    """Write the graph instead of the weights.

    The other files are those that sentence-transformers' ONNX backend reads. That backend needs a
    transformer, so a static or hybrid model gets the graph and the tokenizer only.
    """
    first = model[0]
    hybrid = hybrid_part(model)
    if isinstance(first, StaticEmbedding):
        write_tokenizer(pretrained_tokenizer(first.tokenizer), folder)
    elif hybrid is not None:
        tokenizer, config = onnx_files(hybrid)
        config.save_pretrained(folder)
        write_tokenizer(tokenizer, folder)
    else:
        transformer = cast(Transformer, first)
        mode = next(module.pooling_mode for module in model if isinstance(module, Pooling))
        hidden_size = transformer_of(transformer).config.hidden_size
        modules: list[nn.Module] = [transformer, Pooling(hidden_size, cast(Any, mode))]
        if isinstance(model[-1], Normalize):
            modules.append(Normalize())
        like = {**prompts_of(model), "similarity_fn_name": model.similarity_fn_name}
        write_compatible(SentenceTransformer(modules=modules, device="cpu", **like), folder)
        for weights in folder.glob("*.safetensors*"):
            weights.unlink()
    write_graph(model, folder)


# each copy is read back as other tools read it


def _embed_native(folder: Path, model: SentenceTransformer, texts: Sequence[str]) -> Tensor:
    copy = load_sentence_transformer(str(folder))
    embeddings: Tensor = copy.encode(list(texts), batch_size=4, convert_to_tensor=True)
    return embeddings


def _embed_hf(folder: Path, model: SentenceTransformer, texts: Sequence[str]) -> Tensor:
    has_head = any(isinstance(module, Dense) for module in model)
    pooler = OWN_POOLER if has_head else str(pooler_of(model))
    copy = with_pooler(load_encoder(str(folder)), pooler)
    if isinstance(model[-1], Normalize):
        copy.append(Normalize())
    return encode(copy, _with_prompt(model, texts))


def _embed_onnx(folder: Path, model: SentenceTransformer, texts: Sequence[str]) -> Tensor:
    return graph_vectors(folder, _with_prompt(model, texts))


def _with_prompt(model: SentenceTransformer, texts: Sequence[str]) -> list[str]:
    """Prepend the model's default prompt, which the caller of a copy has to do."""
    prompt = prompt_of(model) or ""
    return [prompt + text for text in texts]


Write = Callable[[SentenceTransformer, Path], None]
Embed = Callable[[Path, SentenceTransformer, Sequence[str]], Tensor]
_LAYOUTS: dict[str, tuple[Write, Embed]] = {
    "native": (_write_native, _embed_native),
    "hf": (_write_hf, _embed_hf),
    "onnx": (_write_onnx, _embed_onnx),
}


def check_push(repository: str) -> None:
    """Check that a folder can be uploaded, before it is made; create a missing repository."""
    if get_token() is None:
        reason = "no token: log in with `hf auth login`, or set HF_TOKEN"
        raise ParameterError("push_to_hub", reason)
    if not hub_reachable():
        reason = "the hub cannot be reached (no network, or HF_HUB_OFFLINE is set)"
        raise ParameterError("push_to_hub", reason)
    with _hub_errors("Nothing was done"):
        HfApi().create_repo(repository, exist_ok=True)


def push(folder: Path, repository: str, left: Path) -> str:
    """Upload a folder and return its address; an error names the local folder ``left``."""
    with _hub_errors(f"The model is in {str(left)!r}"):
        HfApi().upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload by dystress-text"
        )
    return f"{HfApi().endpoint}/{repository}"


@contextmanager
def _hub_errors(left: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the network, the hub and the library have errors of their own
        reason = reason_of(error).rstrip(".").replace(get_token() or "\0", "<token>")
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            reason = f"{status}: this token may not write there; log in with one that may"
        raise ParameterError("push_to_hub", f"{reason}. {left}") from error
