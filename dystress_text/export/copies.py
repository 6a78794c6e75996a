"""Copy a trained model to a layout that other software loads, and upload the copy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
)
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.cli.extras import require
from dystress_text.cli.options import check_names
from dystress_text.cli.progress import OUTPUT
from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.evaluation.results import results_in
from dystress_text.evaluation.text_encoder import OWN_POOLER, with_pooler
from dystress_text.export.card import CARD, HERE, write_card
from dystress_text.export.graph import graph_vectors, write_graph
from dystress_text.export.results import add_results
from dystress_text.io.atomic import atomic_folder, write_json, write_text
from dystress_text.models.encoding import encode, prompt_of, tokenize
from dystress_text.models.loading import (
    MODULES,
    load_encoder,
    load_sentence_transformer,
    pooler_dense,
    prompts_of,
    save_model,
    transformer_of,
    use_old_names,
)
from dystress_text.models.poolers import FIRST, pooler_of
from dystress_text.models.static import is_static, pretrained_tokenizer
from dystress_text.training.run_folder import RECORD, read_record
from dystress_text.training.run_record import RunRecord

LAYOUTS = ("native", "hf", "onnx")
TOLERANCE = 1e-4

# texts on which a copy is checked, from no token to more than any encoder reads
PROBES = (
    "Yes.",
    "A man plays a guitar.",
    "Prices rose 3.4 % in 2019 (the most since 1991), said the bank.",
    "naïve café 東京 🙂",
    "",
    " ".join(["one two three red blue small big"] * 7),
    " ".join(["A sentence that is longer than any limit of an encoder."] * 120),
)


def export(
    model: Path, to: str, output: Path | None = None, repository: str | None = None
) -> tuple[Path, float]:
    """Copy a model to another layout, and check that the copy gives the same embeddings.

    After any failure, also of the upload, there is no copy, so the same call can be repeated.

    Args:
        model: the folder of a trained model.
        to: a layout in :data:`LAYOUTS`.
        output: an empty or new folder; None for the model's folder with ``-`` and ``to`` appended.
        repository: the hub repository to upload to, which the card then names.

    Returns:
        The folder of the copy, and the largest difference between entries of its embeddings and the
        model's.
    """
    check_names("to", [to], LAYOUTS)
    if to == "onnx":
        require("onnx", "`to` onnx")
    if output is None:
        output = Path(f"{model.absolute()}-{to}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ParameterError(
            "output", f"{str(output)!r} exists and is not an empty folder; nothing was written"
        )
    if not (model / MODULES).is_file():
        raise UserError(f"{str(model)!r} is not a model of dystress train: it has no {MODULES}")
    trained = load_sentence_transformer(str(model)).eval()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(output) as folder:
            difference = _write_checked(model, trained, folder, to, repository or HERE)
            if repository is not None:
                _push(folder, repository, model)
    except OSError as error:
        reason = f"cannot write to {str(output)!r}: {error.strerror or error}"
        raise ParameterError("output", reason) from error
    return output, difference


def _write_checked(
    model: Path, trained: SentenceTransformer, folder: Path, to: str, at: str
) -> float:
    """Write a copy with its card and check it; return the largest difference in its embeddings."""
    probes = list(PROBES)
    if not is_static(trained):  # a transformer has no embedding for a text without tokens
        probes = [text for text in PROBES if tokenize(trained, [text])[1] != [0]]
    # (probes, dim); computed first, as writing a layout changes the model
    expected = trained.encode(probes, convert_to_tensor=True)
    if to == "native":
        save_model(trained, folder)
    elif to == "hf":
        _write_hf(trained, folder)
    else:
        _write_onnx(trained, folder)
    _write_card_of_copy(model, trained, folder, to, at)
    embeddings = _read_back(folder, to, trained, probes)
    difference = float((embeddings - expected).abs().max())
    if not difference <= TOLERANCE:  # a NaN is refused too
        raise ParameterError(
            "to",
            f"embeddings of the {to} copy differ from the model's by {difference:.2g}; nothing was "
            "written",
        )
    return difference


def _write_card_of_copy(
    model: Path, trained: SentenceTransformer, folder: Path, to: str, at: str
) -> None:
    card = folder / CARD
    original = model / CARD
    if to == "native" and original.is_file():  # keep the user's edits
        text = original.read_text(encoding="utf-8")
        write_text(card, text.replace(json.dumps(HERE), json.dumps(at)))
        return
    record = read_record(model) if (model / RECORD).is_file() else RunRecord()
    write_card(folder, record, trained, to, at)
    add_results(card, results_in(model))


def _write_hf(model: SentenceTransformer, folder: Path) -> None:
    """Write the encoder as transformers saves it, with the model's head as its pooler."""
    heads = [module for module in model if isinstance(module, Dense)]
    if not isinstance(model[0], Transformer) or not heads:
        reason = "hf is for encoders with a head; AutoModel loads the folder of others as it is"
        raise ParameterError("to", reason)
    transformer = transformer_of(model[0])
    dense = pooler_dense(transformer)
    if pooler_of(model) not in FIRST or dense is None or len(heads) > 1:
        raise ParameterError("to", "hf cannot hold this model's head; native and onnx can")
    dense.load_state_dict(heads[0].linear.state_dict())
    transformer.config.output_hidden_states = False
    transformer.save_pretrained(folder)
    write_tokenizer(model[0].tokenizer, folder)


def _write_onnx(model: SentenceTransformer, folder: Path) -> None:
    """Write the ONNX graph and the files that its readers need.

    With a transformer, sentence-transformers' ONNX backend can read them. It does not support
    static models, whose copy is the graph and the tokenizer.
    """
    first = model[0]
    if isinstance(first, StaticEmbedding):
        write_tokenizer(pretrained_tokenizer(first.tokenizer), folder)
    elif isinstance(first, Transformer):
        if not all(getattr(module, "include_prompt", True) for module in model):
            raise ParameterError("to", "onnx cannot leave a prompt out of pooling; native can")
        pooling = Pooling(model.get_embedding_dimension() or 0)  # the graph's states are embeddings
        read_by_backend = SentenceTransformer(
            modules=[first, pooling],
            device="cpu",
            similarity_fn_name=model.similarity_fn_name,
            **prompts_of(model),
        )
        save_model(read_by_backend, folder)
        write_tokenizer(first.tokenizer, folder)
        for weights in folder.glob("*.safetensors*"):
            weights.unlink()
    else:
        raise ParameterError("to", "onnx cannot hold a hybrid model; native can")
    write_graph(model, folder)


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer for transformers 4, tokenizers and fastembed.

    ``tokenizer.json`` includes truncation and padding. Only fastembed needs
    ``special_tokens_map.json``, which transformers 5 no longer writes.
    """
    tokenizer(["a text"], padding=True, truncation=True)  # sets what tokenizer.json then includes
    tokenizer.save_pretrained(folder)
    use_old_names(folder)
    write_json(folder / "special_tokens_map.json", tokenizer.special_tokens_map)


def _read_back(
    folder: Path, layout: str, model: SentenceTransformer, texts: Sequence[str]
) -> Tensor:
    """Load a copy as its users do; return its embeddings, (n, dim), for ONNX (ways, n, dim)."""
    if layout == "native":
        return load_sentence_transformer(str(folder)).encode(list(texts), convert_to_tensor=True)
    prompt = prompt_of(model) or ""  # users of these layouts prepend it themselves
    texts = [prompt + text for text in texts]
    if layout == "onnx":
        return graph_vectors(folder, texts)
    copy = with_pooler(load_encoder(str(folder)), OWN_POOLER)
    if isinstance(model[-1], Normalize):
        copy.append(Normalize())
    return encode(copy, texts)


def check_push(repository: str) -> None:
    """Check, before training or export, that the token may write to a hub repository.

    Nothing is created.
    """
    with _hub_errors("Nothing was done"):
        validate_repo_id(repository)
        user = HfApi().whoami()
        owners = [user["name"], *(each["name"] for each in user.get("orgs", ()))]
        owner = repository.rpartition("/")[0] or user["name"]
        if owner not in owners:
            raise ValueError(f"the token belongs to {', '.join(owners)}, not to {owner}")
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise ValueError("the token is read-only; use one with write access")


def _push(folder: Path, repository: str, model: Path) -> None:
    """Upload the copy of ``model``; create the repository if it is missing."""
    with _hub_errors(f"The model is in {str(model)!r}; dystress export uploads it too"):
        api = HfApi()
        api.create_repo(repository, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload by dystress-text"
        )
        OUTPUT.info(f"uploaded to {api.endpoint}/{repository}")


@contextmanager
def _hub_errors(state: str) -> Iterator[None]:
    """Turn errors into a ParameterError that hides the token and ends with ``state``."""
    try:
        yield
    except Exception as error:  # the network, the hub and the library raise errors of many types
        reason = reason_of(error).rstrip(".").replace(get_token() or "\0", "<token>")
        raise ParameterError("push_to_hub", f"{reason}. {state}") from error
