"""Loading encoders: one alone, a checkpoint of SimCSE, or a sentence-transformers model with its
pooling and head.

Code that comes with a model is never run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.pooling import AVERAGED, FIRST, LAST, layer_weights
from dystress_text.encoders.saving import BESIDE, MODULES, PROMPTS, prompts_of, quiet
from dystress_text.encoders.static import StaticEncoder, StaticTable, table_of, tokenizer_of
from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.files.hub import hub_reachable, model_file

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_MLP = "mlp.dense.weight"  # the head in a folder that SimCSE's training wrote
_POOLER = "pooler.dense.weight"
_TRIALS = [
    "A configuration can name what shows itself in the forward pass alone.",
    "Or nowhere Else?",
]


@dataclass(frozen=True)
class Pretrained:
    """An encoder as loaded from its files.

    Attributes:
        name: folder or hub name.
        transformer: in fp32.
        tokenizer: the encoder's; ``model_max_length`` is that of a sentence-transformers model.
        pooler: the dense layer of its pooler (dense + tanh on the first token); None without one,
            or without weights.
        simcse: whether this is a folder of SimCSE's training, whose MLP has become the pooler.
        left: weights in the files that the encoder does not use, by the first words of their names.
        pooler_type: of a sentence-transformers model (``cls`` for both of the first token); None
            for an encoder alone.
        head: the dense layer of a sentence-transformers model, (dim, dim).
        normalize: whether a sentence-transformers model scales its vectors to length 1.
        layers: weights of the layers that a sentence-transformers model averages, if they are those
            of no pooler.
    """

    name: str
    transformer: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pooler: nn.Linear | None
    simcse: bool
    left: tuple[str, ...]
    pooler_type: str | None = None
    head: nn.Linear | None = None
    normalize: bool = False
    layers: Tensor | None = None


def load_pretrained(name_or_path: str, dropout: float | None = None) -> Pretrained:
    """Load an encoder and its tokenizer from a folder or from the hub.

    A folder of SimCSE's training (``bert.*``, ``mlp.dense.*``) is read as SimCSE's own conversion
    does it: the MLP becomes the encoder's pooler. ``dropout`` is a rate for every dropout, instead
    of the configuration's.
    """
    with readable(name_or_path):
        # with trust_remote_code=None transformers would ask on the terminal, and accept a piped "y"
        source: dict[str, Any] = {"trust_remote_code": False, **files_of(name_or_path)}
        config = AutoConfig.from_pretrained(name_or_path, **source)
        if dropout is not None:
            rates = [
                name
                for name, x in config.to_dict().items()
                if "drop" in name and isinstance(x, float | int)
            ]
            if not rates:
                raise ParameterError(
                    "dropout", "this encoder's configuration names no dropout rate"
                )
            config.update(dict.fromkeys(rates, dropout))
        weights = source | {"config": config, "dtype": torch.float32, "output_loading_info": True}
        transformer, info = AutoModel.from_pretrained(name_or_path, **weights)
        simcse = _MLP in info["unexpected_keys"] and _POOLER in info["missing_keys"]
        if simcse:
            renamed = {r"^mlp\.dense\.": f"{transformer.base_model_prefix}.pooler.dense."}
            transformer, info = AutoModel.from_pretrained(
                name_or_path, key_mapping=renamed, **weights
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(name_or_path, **source)
        except TypeError as error:  # of transformers 4, whose tokenizers open a file None
            raise UserError(f"{name_or_path!r} has no tokenizer files") from error
        tokenizer.padding_side = (
            "right"  # on the left it would move the positions of GPT-2 and its like
        )
        if transformer.config.is_encoder_decoder:
            raise UserError(
                f"{name_or_path!r} is an encoder-decoder; an encoder such as BERT is needed"
            )
        check_weights(name_or_path, info)
        _give_padding(name_or_path, tokenizer)
        _check_vocabulary(name_or_path, tokenizer, transformer)
        pooler = None if _POOLER in info["missing_keys"] else pooler_dense(transformer)
        left = {name.split(".")[0] for name in info["unexpected_keys"]} - (
            {"mlp"} if simcse else set()
        )
    return Pretrained(name_or_path, transformer, tokenizer, pooler, simcse, tuple(sorted(left)))


def load_model(name_or_path: str, dropout: float | None = None) -> Pretrained:
    """What :func:`load_pretrained` gives, with pooling, head and normalisation if it is a
    sentence-transformers model.

    One that is more than that is refused: the encoder must give the vectors that
    sentence-transformers gives.
    """
    if is_static(name_or_path):
        return _static(name_or_path)
    pretrained = load_pretrained(name_or_path, dropout)
    if not is_sentence_transformer(name_or_path):
        return pretrained
    with readable(name_or_path), torch.random.fork_rng(devices=[]):
        model = load_sentence_transformer(name_or_path, "cpu")
        pretrained = _with_modules(pretrained, model)
        model.tokenizer.padding_side = "right"
        encoder = _with_own_head(pretrained)
        for prompt in {"", max(filter(None, model.prompts.values()), key=len, default="")}:
            vectors = encoder.encode([prompt + text for text in _TRIALS], pretrained.tokenizer)
            expected = model.encode(
                _TRIALS, prompt=prompt, convert_to_tensor=True, show_progress_bar=False
            )
            if not _same(vectors, expected):
                kinds = ", ".join(type(module).__name__ for module in model)
                raise UserError(
                    f"{name_or_path!r} cannot be read: it is made of {kinds}; its vectors are not those of a "
                    "Transformer, Pooling (of prompts too) and on top of them one Dense (tanh) and Normalize"
                )
        if kept := prompts_of(model):
            setattr(pretrained.transformer.config, PROMPTS, kept)
    return pretrained


def is_static(name_or_path: str) -> bool:
    """Whether a folder is a sentence-transformers model of a table of word vectors."""
    modules = Path(name_or_path) / MODULES
    return modules.is_file() and ".StaticEmbedding" in modules.read_text(
        encoding="utf-8", errors="replace"
    )


def _static(name: str) -> Pretrained:
    """A ``StaticEmbedding``, alone or with ``Normalize`` on top."""
    model = load_sentence_transformer(name, "cpu")
    kinds = [type(module).__name__ for module in model]
    if kinds[1:] not in ([], ["Normalize"]) or kinds[0] != "StaticEmbedding":
        raise UserError(
            f"{name!r} cannot be read: it is made of {', '.join(kinds)}, not of StaticEmbedding, Normalize"
        )
    module: Any = model[0]
    tokenizer = tokenizer_of(module.tokenizer)
    table = table_of(module.embedding.weight, tokenizer.unk_token_id)
    if kept := prompts_of(model):
        setattr(table.config, PROMPTS, kept)
    return Pretrained(name, table, tokenizer, None, False, (), "avg", None, len(kinds) > 1)


def load_saved(folder: Path) -> tuple[SentenceEncoder, PreTrainedTokenizerBase]:
    """The encoder of a sentence-transformers folder, with its pooler, head and normalisation, and
    its tokenizer.
    """
    if is_beside(folder):
        from dystress_text.encoders.beside import saved_beside  # slow to import

        return saved_beside(load_sentence_transformer(str(folder), "cpu")[0], folder)
    pretrained = load_model(str(folder))
    if pretrained.pooler_type is None:
        raise UserError(
            f"{str(folder)!r} is not a model of dystress train: a folder with {MODULES} is needed"
        )
    return _with_own_head(pretrained), pretrained.tokenizer


def check_saving(model: SentenceEncoder, tokenizer: PreTrainedTokenizerBase, scratch: Path) -> None:
    """Check that the encoder, saved into a scratch folder and loaded, has the same vectors; it
    leaves no trace.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            model.save(scratch, tokenizer)
            saved, its_tokenizer = load_saved(scratch)
            if not _same(saved.encode(_TRIALS, its_tokenizer), model.encode(_TRIALS, tokenizer)):
                raise UserError("its vectors differ from the encoder's")
    except (OSError, SafetensorError) as error:  # of writing; reading raises others
        raise ParameterError(
            "output_dir", f"cannot write to {str(scratch.parent)!r}: {reason_of(error)}"
        ) from error
    except Exception as error:  # of many libraries, as in readable
        raise UserError(
            f"the model of {model.transformer.name_or_path!r}, saved before the first step and loaded again, is not "
            f"the encoder ({reason_of(error)}): take another encoder, or this one with its own tokenizer"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def load_encoder(
    name_or_path: str, pooler_type: str = "cls", mlp_head: bool | None = None
) -> tuple[SentenceEncoder, PreTrainedTokenizerBase]:
    """An encoder alone, in fp32, and its tokenizer, from a folder or from the hub; see
    :class:`SentenceEncoder`.
    """
    pretrained = load_pretrained(name_or_path)
    return build_encoder(pretrained, pooler_type, mlp_head), pretrained.tokenizer


def build_encoder(
    pretrained: Pretrained,
    pooler_type: str = "cls",
    mlp_head: bool | None = None,
    keep_head: bool = False,
) -> SentenceEncoder:
    """A sentence encoder from loaded files; it encodes a sentence as a trial, alone and beside a
    longer one.
    """
    if isinstance(pretrained.transformer, StaticTable):
        return StaticEncoder(pretrained.transformer, pretrained.normalize)
    with readable(pretrained.name):
        more = (pretrained.normalize, pretrained.layers)
        encoder = SentenceEncoder(pretrained.transformer, pooler_type, mlp_head, keep_head, *more)
        with torch.random.fork_rng(devices=[]):
            alone = encoder.encode(_TRIALS[:1], pretrained.tokenizer)
            padded = encoder.encode([_TRIALS[0], " ".join(_TRIALS * 3)], pretrained.tokenizer)
            if not _same(padded[:1], alone, equal_nan=True):
                raise UserError(
                    f"{pretrained.name!r} cannot be used: a text's vector changes with the padding of its batch, since "
                    f"encoders of type {pretrained.transformer.config.model_type!r} read padding; take another one"
                )
            if pooler_type in FIRST and reads_forward(pretrained.transformer, pretrained.tokenizer):
                raise ParameterError(
                    "pooler_type",
                    f"{pooler_type} is the first token, which in this decoder sees no other; take {LAST}",
                )
    return encoder


def _same(vectors: Tensor, expected: Tensor, equal_nan: bool = False) -> bool:
    """Whether vectors are equal but for rounding, which the largest entry decides."""
    atol = 1e-5 + 1e-4 * float(expected.nan_to_num().abs().max())
    return vectors.shape == expected.shape and torch.allclose(vectors, expected, 0, atol, equal_nan)


def pooler_encoder(pretrained: Pretrained) -> SentenceEncoder:
    """An encoder whose vectors are transformers' ``pooler_output``: the first token, then the
    pooler's dense + tanh.
    """
    if pretrained.pooler is None:
        raise ParameterError(
            "pooler_type", f"{pretrained.name!r} has no weights of a pooler of dense + tanh"
        )
    return _with_own_head(replace(pretrained, pooler_type="cls", head=pretrained.pooler))


def _with_own_head(pretrained: Pretrained) -> SentenceEncoder:
    """A sentence-transformers model as it is."""
    encoder = build_encoder(
        pretrained, str(pretrained.pooler_type), pretrained.head is not None, keep_head=True
    )
    if pretrained.head is not None:
        encoder.start_head(pretrained.head)
    return encoder


def load_sentence_transformer(name_or_path: str, device: str | None = None) -> SentenceTransformer:
    """Load a sentence-transformers model in fp32; without a device, on one of
    sentence-transformers' choice.
    """
    from sentence_transformers import SentenceTransformer  # slow to import

    def with_a_position(module: Any, inputs: tuple[dict[str, Any]]) -> None:
        """Let texts without tokens, where a batch has no others, have padding: no encoder reads (n,
        0) tokens.
        """
        for name, x in inputs[0].items():
            if isinstance(x, Tensor) and x.shape[1:] == (0,):
                fill = module.tokenizer.pad_token_id if name == "input_ids" else 0
                inputs[0][name] = x.new_full((len(x), 1), fill, dtype=torch.long)

    local = Path(name_or_path).is_dir() or not hub_reachable()
    if is_beside(Path(name_or_path)):
        return _with_words(name_or_path, device)
    with readable(name_or_path):
        modules = Path(name_or_path) / MODULES
        try:
            for entry in (
                json.loads(modules.read_text(encoding="utf-8")) if modules.is_file() else ()
            ):
                if not entry["type"].startswith(
                    "sentence_transformers."
                ):  # old releases run the code of a folder
                    raise UserError(
                        f"cannot load {name_or_path!r}: {MODULES} names {entry['type']!r}"
                    )
            model = SentenceTransformer(
                name_or_path, device=device, local_files_only=local, trust_remote_code=False,
                model_kwargs={"dtype": torch.float32},
            )  # fmt: skip
            model[0].register_forward_pre_hook(with_a_position)
            return model
        except (TypeError, LookupError, AttributeError, ValueError) as error:  # which name no file
            files = f"{MODULES} or the config.json of a module is missing or damaged"
            raise UserError(
                f"cannot load {name_or_path!r}: {files} ({reason_of(error)})"
            ) from error


def is_beside(folder: Path) -> bool:
    """Whether a folder is a model with a table of words beside it."""
    return (folder / BESIDE).is_file()


def _with_words(folder: str, device: str | None) -> SentenceTransformer:
    """A model with words beside it, by the class of this package; the file of the folder is not
    run.
    """
    from sentence_transformers import SentenceTransformer

    from dystress_text.encoders.beside_module import BesideEmbedding

    model = load_sentence_transformer(str(Path(folder) / "model"), device)
    with readable(folder):
        module = BesideEmbedding.beside(model, Path(folder))
        kept = prompts_of(model) | {"similarity_fn_name": "cosine"}
        return SentenceTransformer(modules=[module], device=device, **kept)


@contextmanager
def readable(name_or_path: str, what: str = "load") -> Iterator[None]:
    """Turn any error inside into one line that says what cannot be loaded, and let transformers say
    nothing else.
    """
    try:
        with quiet():
            yield
    except UserError:
        raise
    except Exception as error:  # damaged files raise errors of many libraries
        raise UserError(f"cannot {what} {name_or_path!r}: {reason_of(error)}") from error


def check_loaded(name: str, transformer: nn.Module | None) -> None:
    """Refuse the encoder of a sentence-transformers model some of whose weights its files lack."""
    if isinstance(transformer, PreTrainedModel):
        more: dict[str, Any] = {
            "config": transformer.config,
            "output_loading_info": True,
            **files_of(name),
        }
        loaded: Any = type(transformer).from_pretrained(name, **more)
        check_weights(name, loaded[1])


def check_weights(name: str, info: Mapping[str, Any]) -> None:
    """Refuse an encoder some of whose weights its files lack; a pooler's may be missing, since
    pooling needs none.

    ``info`` is what ``from_pretrained`` tells with ``output_loading_info``.
    """
    missing = info["missing_keys"]
    if own := sorted(key for key in missing if not key.startswith("pooler.")):
        raise UserError(
            f"{name!r} lacks weights of its encoder, {len(own)} in all, such as {own[0]}"
        )


def pooler_dense(transformer: PreTrainedModel) -> nn.Linear | None:
    """The dense layer of an encoder's pooler that is dense + tanh on the first token, as BERT's;
    else None.
    """
    pooler: Any = getattr(transformer, "pooler", None)
    is_tanh = isinstance(getattr(pooler, "activation", None), nn.Tanh)
    return cast(nn.Linear, pooler.dense) if is_tanh else None


def is_sentence_transformer(name_or_path: str) -> bool:
    """Whether a folder, or a name on the hub or in its cache, is a model of sentence-transformers."""
    with readable(name_or_path):
        return model_file(name_or_path, MODULES) is not None


def files_of(name_or_path: str) -> dict[str, Any]:
    """Where transformers finds an encoder's files: of a sentence-transformers model in the folder
    of its module.
    """
    file, folder = model_file(name_or_path, MODULES), ""
    if file is not None:
        with suppress(
            ValueError, LookupError, TypeError
        ):  # a damaged file has an error of its own later
            folder = json.loads(file.read_text(encoding="utf-8"))[0]["path"]
    return {"local_files_only": not hub_reachable(), "subfolder": folder}


def _with_modules(pretrained: Pretrained, model: SentenceTransformer) -> Pretrained:
    """What the modules behind the transformer are to a :class:`SentenceEncoder`; sets the
    tokenizer's limit.
    """
    modules: dict[str, Any] = {type(module).__name__: module for module in model}
    pooling, layers = modules.get("Pooling"), pretrained.transformer.config.num_hidden_layers
    mode = (
        getattr(pooling, "pooling_mode", None) or getattr(pooling, "get_pooling_mode_str", str)()
    )  # before 5.4
    weighted = modules.get("WeightedLayerPooling")
    weights = layer_weights("avg", layers) if weighted is None else weighted.layer_weights
    names = {"cls": ("cls",), "mean": tuple(AVERAGED), "lasttoken": (LAST,)}.get(str(mode), ())
    if not names:
        raise UserError(
            f"{pretrained.name!r}: pooling {mode!r} is that of no pooler of this package"
        )
    pooler_type = next(
        (name for name in names if torch.equal(layer_weights(name, layers), weights)), None
    )
    pretrained.tokenizer.model_max_length = (
        model.max_seq_length or pretrained.tokenizer.model_max_length
    )
    head = modules["Dense"].linear if "Dense" in modules else None
    own = (
        weights.detach() if pooler_type is None else None
    )  # as sentence-transformers' trainer leaves them
    unit = "Normalize" in modules
    return replace(
        pretrained, pooler_type=pooler_type or names[0], head=head, normalize=unit, layers=own
    )


def _give_padding(name_or_path: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let the end-of-sequence token pad where a tokenizer has no token for it, as many decoders."""
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise UserError(
                f"{name_or_path!r} has no padding token: set pad_token in its tokenizer_config.json"
            )
        tokenizer.pad_token = tokenizer.eos_token


@torch.no_grad()
def reads_forward(transformer: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a token sees only those before it: the first one is then the same whatever follows."""
    first, other = sorted(tokenizer.get_vocab().values())[-2:]
    ids = torch.tensor([[first, first], [first, other]], device=transformer.device)
    was_training = transformer.training
    states = transformer.eval()(ids).last_hidden_state
    transformer.train(was_training)
    return bool(
        torch.equal(states[0, 0], states[1, 0]) and not torch.equal(states[0, 1], states[1, 1])
    )


def _check_vocabulary(
    name_or_path: str, tokenizer: PreTrainedTokenizerBase, transformer: PreTrainedModel
) -> None:
    """Refuse a tokenizer without words: transformers makes one for a folder without tokenizer
    files.
    """
    rows, vocabulary = (
        cast(nn.Embedding, transformer.get_input_embeddings()).num_embeddings,
        tokenizer.get_vocab(),
    )
    if len(vocabulary) <= len(tokenizer.all_special_tokens):
        raise UserError(f"{name_or_path!r} has no tokenizer files: no word is known")
    if (highest := max(vocabulary.values())) >= rows:
        raise UserError(
            f"{name_or_path!r} has a tokenizer with ids up to {highest} for {rows} token embeddings"
        )
