"""Load or make the model that a run starts from, and check that it is saved as it is trained.

A run starts from an encoder with a pooler, a SimCSE checkpoint, a sentence-transformers model, or a
static model.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Transformer
from tokenizers import Tokenizer
from torch import nn

from dystress_text.errors import ParameterError, UserError, naming, reason_of
from dystress_text.finetuning.settings import LEXICAL, TextSettings
from dystress_text.finetuning.texts import TrainingText, training_text
from dystress_text.io.paths import model_path
from dystress_text.io.words import reader_for
from dystress_text.models.distillation import distill
from dystress_text.models.encoding import in_evaluation_mode, tokenize
from dystress_text.models.hybrid import (
    describe_parts,
    lexical_part,
    load_dense,
    new_hybrid,
)
from dystress_text.models.hybrid_module import DistilledPart, HybridEmbedding
from dystress_text.models.loading import (
    PretrainedEncoder,
    is_sentence_transformer,
    load_encoder,
    load_sentence_transformer,
    prompts_of,
    readable,
    save_model,
    transformer_of,
)
from dystress_text.models.masked_lm import load_lm_head
from dystress_text.models.model_with_heads import ModelWithHeads, check_views
from dystress_text.models.poolers import (
    FIRST,
    LAST,
    POOLERS,
    attends_to_the_left_only,
    pooler_of,
    pooling_modules,
)
from dystress_text.models.static import (
    STATIC,
    TEXTS_READ,
    document_id,
    embedded_tokenizer,
    fast_tokenizer,
    freeze_unknown,
    is_static,
    learn_tokenizer,
    new_static,
    set_unknown,
    table_of,
)
from dystress_text.models.text_reader import TextReader

# origin of a head's weights
NEW_HEAD = "new"
OWN_HEAD = "the model's own"
SIMCSE_HEAD = "SimCSE's MLP"


@dataclass(frozen=True)
class TextModel:
    """The model of a text run: what is trained, evaluated and saved.

    Attributes:
        embedder: the module that is trained.
        model: the model that is evaluated and saved: the embedder's model, or a hybrid that
            contains it.
        untrained: the model before training, without a new head.
        pooler: a name in :data:`dystress_text.models.poolers.POOLERS`; None for other pooling.
        notes: lines that tell the user what was loaded and what is trained.
        head: the origin of the head, and whether the saved model keeps it; None without a head.
        document_row: whether a static model has a document row
            (:mod:`dystress_text.models.static`).
    """

    embedder: ModelWithHeads
    model: SentenceTransformer
    untrained: SentenceTransformer
    pooler: str | None
    notes: list[str]
    head: Mapping[str, Any] | None = None
    document_row: bool = False

    @property
    def is_static(self) -> bool:
        """Whether the trained part is a static model."""
        return is_static(self.embedder.model)

    def to(self, device: torch.device) -> None:
        self.embedder.to(device)
        self.model.to(device)

    def save(self, folder: Path) -> None:
        """Save ``model`` as it is now, in sentence-transformers' format."""
        if is_static(self.model):
            set_unknown(self.model)  # weight decay makes it smaller
        save_model(self.model, folder)


def load_initial_model(
    settings: TextSettings,
    given: Collection[str] = (),
    texts: TrainingText | None = None,
    language: str | None = None,
    distilled: DistilledPart | None = None,
) -> TextModel:
    """Load or make the model that a run starts from.

    Args:
        settings: the options of the model and the data.
        given: the names of the options that the user gave.
        texts: the training text. ``vocabulary="text"`` learns word pieces from it, and the lexical
            part of a hybrid counts its words.
        language: the language of the lexical part, as in :func:`dystress_text.io.words.reader_for`.
        distilled: the result of :func:`distill_text`.

    Raises:
        ParameterError: the model cannot be loaded, or an option does not fit it.
    """
    name = model_path(settings.model_name_or_path)
    loaded: PretrainedEncoder | SentenceTransformer | None = None
    if name != STATIC:
        for option in {"vocabulary", "dim"}.intersection(given):
            reason = f"applies only to `model_name_or_path` {STATIC}; {name!r} has its own"
            raise ParameterError(option, reason)
        loaded = _load(name, settings)
    if loaded is None or (isinstance(loaded, SentenceTransformer) and is_static(loaded)):
        return _static(loaded, settings, given, texts, language, distilled)
    for option in ("hybrid", "distill"):
        if getattr(settings, option) is not None:
            raise ParameterError(option, f"requires a static encoder; {name!r} is not one")
    if isinstance(loaded, PretrainedEncoder):
        kind = "SimCSE checkpoint" if loaded.is_simcse else "encoder"
        mlp = loaded.pooler if loaded.is_simcse else None
        model = _with_pooler(loaded, settings.pooler_type)
        return _assemble(name, model, settings.pooler_type, settings, f"{kind} {name!r}", mlp)
    kinds = ", ".join(type(module).__name__ for module in loaded)
    if not isinstance(loaded[0], Transformer):
        reason = f"has the modules {kinds}; the first must be Transformer or StaticEmbedding"
        raise ParameterError("model_name_or_path", f"{name!r} {reason}")
    note = f"sentence-transformers model: {kinds}; at most {loaded.max_seq_length} tokens"
    return _assemble(name, loaded, _own_pooler(loaded, settings, given), settings, note)


def _load(name: str, settings: TextSettings) -> PretrainedEncoder | SentenceTransformer:
    with naming("model_name_or_path"):
        if is_sentence_transformer(name):
            return load_sentence_transformer(name, dropout=settings.dropout)
        return load_encoder(name, settings.dropout)


def _with_pooler(encoder: PretrainedEncoder, pooler: str) -> SentenceTransformer:
    """Add a pooler and normalisation to an encoder."""
    module = encoder.module
    if pooler not in POOLERS:
        raise ParameterError(
            "pooler_type", f"unknown pooler {pooler!r}; known: {', '.join(POOLERS)}"
        )
    if pooler in FIRST and attends_to_the_left_only(encoder.transformer):
        reason = f"{pooler}: the first token attends to no other in a decoder; use {LAST}"
        raise ParameterError("pooler_type", reason)
    modules = [module, *pooling_modules(pooler, module), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu")


def _own_pooler(
    model: SentenceTransformer, settings: TextSettings, given: Collection[str]
) -> str | None:
    """Return the pooler of a sentence-transformers model; None for other pooling.

    Options that would change its pooler or its head are refused.
    """
    pooler = pooler_of(model)
    if pooler in FIRST and settings.pooler_type in FIRST:
        pooler = settings.pooler_type  # both are saved as the first token
    if "pooler_type" in given and settings.pooler_type != pooler:
        own = pooler or "another"
        reason = f"this sentence-transformers model has {own}; leave the option out"
        raise ParameterError("pooler_type", reason)
    if settings.mlp_head is False and any(isinstance(module, Dense) for module in model):
        raise ParameterError("mlp_head", "this model has a head of its own, which is kept")
    return pooler


def _assemble(
    name: str,
    loaded: SentenceTransformer,
    pooler: str | None,
    settings: TextSettings,
    note: str,
    mlp: nn.Linear | None = None,
) -> TextModel:
    """Assemble the model, and the head and language-model head that only training needs.

    Args:
        name: folder or hub name of the model.
        loaded: the model, with its own head if it has one.
        pooler: the pooler of the model; None for other pooling.
        settings: the options of model and data.
        note: tells the user what was loaded.
        mlp: the layer of a SimCSE checkpoint from which a new head starts.
    """
    transformer = transformer_of(cast(Transformer, loaded[0]))
    similarity = loaded.similarity_fn_name
    options = {"device": "cpu", **prompts_of(loaded), "similarity_fn_name": similarity}
    modules = list(loaded)
    last: list[nn.Module] = []
    if isinstance(modules[-1], Normalize):
        last = [modules.pop()]
    head = None
    origin = OWN_HEAD
    if isinstance(modules[-1], Dense):
        head = cast(Dense, modules.pop())
    model = SentenceTransformer(modules=[*modules, *last], **options)
    untrained = model
    wanted = settings.mlp_head
    if wanted is None:
        wanted = pooler == "cls"  # SimCSE's rule
    if head is None and wanted:
        head = new_head(transformer, model.get_embedding_dimension())
        origin = NEW_HEAD
        if mlp is not None:
            head.linear.load_state_dict(mlp.state_dict())
            origin = SIMCSE_HEAD
    keep = origin == OWN_HEAD or (settings.supervised and pooler == "cls")  # SimCSE's, too
    if settings.mlp_only_train is not None:
        keep = not settings.mlp_only_train
    notes = [note]
    described = None
    if head is not None:
        described = {"starts": origin, "kept": keep}
        notes.append(f"head: {origin}, {'kept' if keep else 'dropped after training'}")
        if keep:
            model = SentenceTransformer(modules=[*modules, head, *last], **options)
            if origin != NEW_HEAD:
                untrained = model
            head = None  # it is part of the model now
    embedder = _checked_embedder(name, model, head, settings)
    return TextModel(embedder, model, untrained, pooler, notes, described)


def _checked_embedder(
    name: str, model: SentenceTransformer, head: Dense | None, settings: TextSettings
) -> ModelWithHeads:
    """Return the module that is trained; reject options that do not fit it."""
    transformer = transformer_of(cast(Transformer, model[0]))
    lm_head = load_lm_head(name, transformer) if settings.do_mlm else None
    embedder = ModelWithHeads(model, head, lm_head)
    limit = model.max_seq_length
    if limit is not None and settings.max_seq_length > limit:
        reason = f"this encoder reads at most {limit} tokens, got {settings.max_seq_length}"
        raise ParameterError("max_seq_length", reason)
    if settings.dropout != 0 and settings.views == "dropout" and not settings.supervised:
        check_views(embedder)  # a dropout of 0 is on purpose
    return embedder


def new_head(transformer: Any, dim: int | None = None) -> Dense:
    """Return a new SimCSE head, dense + tanh on (n, dim), initialised like the encoder."""
    dim = dim or transformer.config.hidden_size
    head = Dense(dim, dim, activation_function=nn.Tanh())
    nn.init.normal_(head.linear.weight, std=getattr(transformer.config, "initializer_range", 0.02))
    nn.init.zeros_(head.linear.bias)
    return head


def _new_tokenizer(
    settings: TextSettings,
    given: Collection[str],
    texts: TrainingText | None,
    dense: SentenceTransformer | None,
) -> Tokenizer:
    """Return the tokenizer for a new static model."""
    if settings.vocabulary == "text" and texts is not None:
        return learn_tokenizer(texts.sentences())
    if dense is not None and "vocabulary" not in given:
        return fast_tokenizer(dense)
    return embedded_tokenizer()


def _static(
    model: SentenceTransformer | None,
    settings: TextSettings,
    given: Collection[str],
    texts: TrainingText | None,
    language: str | None,
    distilled: DistilledPart | None,
) -> TextModel:
    """Return a static model, loaded or new, that is trained alone or as the table of a hybrid."""
    for option in ("mlp_head", "do_mlm", "dropout"):
        if getattr(settings, option):
            raise ParameterError(option, "a static encoder has none; leave the option out")
    if settings.views == "dropout" and not settings.supervised:
        reason = "a static encoder has no dropout: its views are crops, `views` crop"
        raise ParameterError("views", reason)
    if "pooler_type" in given and settings.pooler_type != "avg":
        raise ParameterError("pooler_type", "a static encoder has only avg; leave the option out")
    dense = None
    if settings.hybrid not in (None, LEXICAL):
        dense = load_dense(settings.hybrid)
    if model is None:
        tokenizer = _new_tokenizer(settings, given, texts, dense)
        model = new_static(tokenizer, settings.dim, normalize=True)
    freeze_unknown(model)
    rows, dim = table_of(model).shape
    has_row = document_id(model) is not None
    notes = [f"static: {rows - has_row:,} word pieces, {dim} numbers each"]
    if not has_row:
        notes.append("no document row: its documents are embedded like queries")
    saved = model
    if settings.is_hybrid:
        source = texts or training_text(settings)
        sentences = partial(source.sentences, settings.max_train_samples)
        first_texts = [] if language else list(islice(sentences(), TEXTS_READ))
        reader = reader_for(language, first_texts)
        lexical = lexical_part(sentences, reader, 2 * dim)
        saved = new_hybrid(model, dense=dense, distilled=distilled, lexical=lexical)
        hybrid = cast(HybridEmbedding, saved[0])
        notes += [f"vector: {describe_parts(hybrid)}", f"lexical part: {reader.title}"]
    return TextModel(ModelWithHeads(model), saved, saved, "avg", notes, document_row=has_row)


def distill_text(
    settings: TextSettings, texts: TrainingText, device: torch.device
) -> DistilledPart | None:
    """Distil the model that ``distill`` names on the training text; None if it names none.

    Args:
        settings: the options of the model and the data.
        texts: the training text.
        device: the device of that model.
    """
    if settings.distill is None:
        return None
    documents = partial(texts.titled_sentences, settings.max_train_samples)
    return distill(load_dense(settings.distill, "distill").to(device), documents)


# texts that are short, long, without words, or contain the names of special tokens
_TRIALS = [
    "A model is saved and loaded before the first step.",
    "Or nowhere Else?",
    "word",
    "",
    "  white\tspace ",
    "Stra\u00dfe, na\u00efve \u6f22\u5b57 \U0001f642",
    "a <pad> b [PAD] c <s> d </s> e [CLS] f [SEP] g <unk> h [UNK] i <mask> j [MASK] k",
    " ".join(f"number {number} of many" for number in range(200)),
]
_TOLERANCE = 1e-4  # between unit vectors


def check_saving(initial: TextModel, max_seq_length: int, scratch: Path) -> None:
    """Check that the training pass embeds texts as ``encode`` of the saved model does.

    The check runs without dropout, and without a head that only training uses. The model is saved
    to ``scratch``, which is then removed; the random state is restored.

    Raises:
        ParameterError: the embeddings of a text differ.
        UserError: the model cannot be saved, loaded, or encode a text.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            initial.save(scratch)
            saved = load_sentence_transformer(str(scratch))
    except Exception as error:  # of many libraries
        reason = reason_of(error)
        raise UserError(f"the model cannot be saved and loaded again: {reason}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    with readable("the model", "encode with"):
        _check_trials(initial, saved, max_seq_length)


def _check_trials(initial: TextModel, saved: SentenceTransformer, max_seq_length: int) -> None:
    trained = initial.embedder.model
    lengths = {text: tokenize(trained, [text])[1][0] for text in _TRIALS}
    if initial.is_static:  # encode reads a text to its end
        texts = [text for text in _TRIALS if 0 < lengths[text] <= max_seq_length]
    else:
        saved.max_seq_length = max_seq_length
        texts = [text for text in _TRIALS if lengths[text]]
    batch = TextReader(trained, max_seq_length).batch(texts)
    with torch.no_grad():
        ids = batch["token_ids"].to(trained.device)
        embed = in_evaluation_mode(initial.embedder)
        embeddings = embed(ids, batch["lengths"].to(trained.device)).cpu()
    expected = saved.encode(
        texts, prompt="", batch_size=1, convert_to_tensor=True, show_progress_bar=False
    )
    expected = expected[:, -embeddings.shape[1] :]  # of a hybrid the part that is trained
    distances = (F.normalize(embeddings) - F.normalize(expected)).norm(dim=1)  # (texts,)
    worst = int(distances.argmax())
    if not distances[worst] <= _TOLERANCE:
        reason = (
            f"training and encode of the saved model give {texts[worst][:40]!r} different "
            f"embeddings, {distances[worst]:.2g} apart; choose another model"
        )
        raise ParameterError("model_name_or_path", reason)
