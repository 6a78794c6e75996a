"""Copies of a trained model in layouts that other tools load, and their upload."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, get_token
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.cli.extras import require
from dystress_text.cli.options import check_names
from dystress_text.encoders.beside import BesideEncoder
from dystress_text.encoders.encoder import SentenceEncoder, length_limit
from dystress_text.encoders.loading import (
    load_encoder,
    load_pretrained,
    load_saved,
    load_sentence_transformer,
    pooler_dense,
    pooler_encoder,
)
from dystress_text.encoders.pooling import AVERAGED, FIRST, token_of, token_pooler
from dystress_text.encoders.saving import write_config, write_model, write_tokenizer
from dystress_text.encoders.static import StaticEncoder
from dystress_text.errors import ParameterError, reason_of
from dystress_text.export.card import CARD, HERE, describe_base, read_card, write_card
from dystress_text.export.graph import graph_vectors, int8_loss, quantize, write_graph
from dystress_text.export.results import carry_results
from dystress_text.files.hub import hub_reachable
from dystress_text.files.places import EMBEDDED_MODEL, model_name, model_path
from dystress_text.files.whole import whole_folder, write_text
from dystress_text.training.run_folder import RECORD, read_run
from dystress_text.training.run_record import BaseModel, RunRecord

TOLERANCE = 1e-4

# the copy is checked on these: from one token to more than the longest input, in batches of odd
# sizes
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
    """Make a copy of a model folder in a layout, with ``at`` as its name on its card; whole and
    checked, or not at all.

    With ``int8_on``, texts, an ONNX copy has a second graph in int8, and what that loses on them is
    printed.

    Returns the copy's folder, and the largest difference between an entry of its vectors and the
    model's.
    """
    check_names("to", [to], _LAYOUTS)
    if int8_on is not None and to != "onnx":
        raise ParameterError("quantize", "is of --to onnx")
    name = model_name(str(model))  # the copy does not go beside the small model in the package
    small = name == EMBEDDED_MODEL and not (
        str(model) == name and model.is_dir()
    )  # a folder of the name is the user's
    model = Path(model_path(name)) if small else model
    output = output if output is not None else Path(f"{os.path.abspath(name)}-{to}")
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ParameterError(
            "output", f"{str(output)!r} exists and is not an empty folder; nothing was written"
        )
    if to == "onnx":
        require("onnx", "--to onnx")
    record = read_run(model) if (model / RECORD).is_file() else RunRecord()
    if small:  # an encoder alone
        record = RunRecord(base_model=BaseModel(**describe_base(str(model))))
    encoder, tokenizer = (
        load_encoder(str(model), "avg", mlp_head=False) if small else load_saved(model)
    )
    tokenizer.model_max_length = length_limit(tokenizer, encoder.eval().transformer)
    encoder.transformer.config.output_hidden_states = (
        False  # a saved model's says so where its pooler needs them
    )
    write, embed = _LAYOUTS[to]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(output) as folder:
            write(encoder, tokenizer, folder)
            card, own = folder / CARD, model / CARD
            if to == "native" and own.is_file():  # it may be edited
                write_text(card, read_card(own).replace(json.dumps(HERE), json.dumps(at)))
            else:
                write_card(folder, record, encoder, tokenizer.model_max_length, to, at)
                if own.is_file():
                    carry_results(own, card)
            for file in folder.rglob("*"):  # some libraries write for the owner's eyes alone
                if file.is_file():
                    file.chmod(card.stat().st_mode)
            # of a text without tokens cls takes padding, whose state depends on the attention's
            # kernel
            rows = [
                i
                for i, x in enumerate(PROBES)
                if encoder.pooler_type not in FIRST or tokenizer(x)["input_ids"]
            ]
            difference = float(
                (embed(folder, encoder) - encoder.encode(PROBES, tokenizer))[rows].abs().max()
            )
            if not difference <= TOLERANCE:  # a NaN is refused too
                raise ParameterError(
                    "to", f"the {to} copy's vectors differ by {difference:.2g}; nothing was written"
                )
            if int8_on is not None:
                quantize(folder)
                print(int8_loss(folder, int8_on), flush=True)
    except OSError as error:
        raise ParameterError(
            "output", f"cannot write to {str(output)!r}: {error.strerror or error}"
        ) from error
    return output, difference


# ---- writing the layouts
# ---------------------------------------------------------------------------------------------


def _write_hf(encoder: SentenceEncoder, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the encoder; its configuration says how to pool, and a kept head goes into the
    encoder's own pooler.
    """
    if isinstance(encoder, StaticEncoder):
        kind = (
            "model with words beside it"
            if isinstance(encoder, BesideEncoder)
            else "table of word vectors"
        )
        raise ParameterError("to", f"transformers alone has no {kind}; native and onnx can hold it")
    layers = AVERAGED.get(encoder.pooler_type)
    pooling = encoder.transformer.config.sentence_embedding = {
        "pooler_type": encoder.pooler_type,
        "mean_of_hidden_states": list(layers or (-1,)),
        "tokens": {"cls": "first", "lasttoken": "last"}.get(token_of(encoder.pooler_type), "mean"),
        "normalize": encoder.normalize,
    }
    if encoder.layers is not None:
        raise ParameterError(
            "to",
            "for hf this model's weights of layers have no place; native and onnx can hold them",
        )
    if encoder.head is not None and encoder.keep_head:
        dense = pooler_dense(encoder.transformer)
        if (other := encoder.pooler_type not in FIRST) or dense is None:
            reason = (
                "does not follow the first token"
                if other
                else "has no place: the encoder has no pooler"
            )
            raise ParameterError(
                "to", f"for hf this model's head {reason}; native and onnx can hold it"
            )
        dense.load_state_dict(encoder.head.state_dict())
        pooling["head"] = "pooler_output"
    encoder.transformer.save_pretrained(folder)
    write_config(encoder.transformer.config, folder)
    write_tokenizer(tokenizer, folder)


def _write_onnx(encoder: SentenceEncoder, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the graph in place of the weights, among the other files that sentence-transformers'
    ONNX backend reads.

    A table, alone or beside a model, is no transformer that this backend could read.
    """
    if isinstance(encoder, StaticEncoder):
        config = encoder.transformer.config
        if isinstance(encoder, BesideEncoder):
            tokenizer, config = encoder.of_graph(tokenizer)
        config.save_pretrained(folder)
        write_tokenizer(tokenizer, folder)
    else:
        pooler_type = token_pooler(encoder.pooler_type)
        write_model(
            folder,
            encoder.transformer,
            tokenizer,
            pooler_type,
            normalize=encoder.normalize,
            weights=False,
        )
    write_graph(encoder, folder)


# ---- reading them back as the tools do
# -------------------------------------------------------------------------------


def _embed_native(folder: Path, encoder: SentenceEncoder) -> Tensor:
    model = load_sentence_transformer(str(folder), "cpu")
    vectors: Tensor = model.encode(list(PROBES), prompt="", batch_size=4, convert_to_tensor=True)
    return vectors


def _embed_hf(folder: Path, encoder: SentenceEncoder) -> Tensor:
    if encoder.keep_head:
        pretrained = load_pretrained(str(folder))
        copy, tokenizer = pooler_encoder(pretrained), pretrained.tokenizer
    else:
        copy, tokenizer = load_encoder(str(folder), encoder.pooler_type, mlp_head=False)
    copy.normalize = encoder.normalize
    return copy.encode(PROBES, tokenizer, batch_size=4)


Write = Callable[[SentenceEncoder, PreTrainedTokenizerBase, Path], None]
Embed = Callable[[Path, SentenceEncoder], Tensor]
_LAYOUTS: dict[str, tuple[Write, Embed]] = {
    "native": (lambda encoder, tokenizer, folder: encoder.save(folder, tokenizer), _embed_native),
    "hf": (_write_hf, _embed_hf),
    "onnx": (_write_onnx, lambda folder, encoder: graph_vectors(folder, PROBES)),
}


# ---- the hub
# ---------------------------------------------------------------------------------------------------------


def check_push(repository: str) -> None:
    """Check that a folder can be uploaded, before it is made; a repository that does not exist is
    made.
    """
    if get_token() is None:
        raise ParameterError(
            "push_to_hub", "no token: log in with `hf auth login`, or set HF_TOKEN"
        )
    if not hub_reachable():
        raise ParameterError(
            "push_to_hub", "the hub cannot be reached (no network, or HF_HUB_OFFLINE is set)"
        )
    with _hub_errors("Nothing was done"):
        HfApi().create_repo(repository, exist_ok=True)


def push(folder: Path, repository: str, left: Path) -> str:
    """Upload a folder and return the address; ``left`` is what an error says is here."""
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
        if (status := getattr(getattr(error, "response", None), "status_code", None)) in (401, 403):
            reason = f"{status}: this token may not write there; log in with one that may (`hf auth login`)"
        raise ParameterError("push_to_hub", f"{reason}. {left}") from error
