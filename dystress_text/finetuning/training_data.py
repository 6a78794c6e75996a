"""The samples of a run: tokenised, without duplicates and without the texts that are held out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from accelerate import Accelerator

from dystress_text.config.settings import RunSettings
from dystress_text.data.corpus import (
    Corpus,
    TokenCroppedCorpus,
    TokenizedCorpus,
    load_corpus,
)
from dystress_text.data.crops import Crops
from dystress_text.data.texts import TrainingText
from dystress_text.errors import ParameterError
from dystress_text.finetuning import holdout
from dystress_text.finetuning.initial_model import InitialModel
from dystress_text.models.static import STATIC, initialize_by_idf, table_of
from dystress_text.training.batches import count_steps
from dystress_text.training.settings import TrainingSettings

# Steps of a static model at its preset's rate; a longer run takes the rate x sqrt(250 / steps), so
# that tokens keep the weight that their idf gave them.
FULL_RATE_STEPS = 250
# a higher rate may diverge where the encoder has so many layers
DEEP_LAYERS = 12
DEEP_RATE = 1e-4


@dataclass(frozen=True)
class TrainingData:
    """What a run trains on, and what it holds out.

    Attributes:
        text: the source.
        corpus: the samples to train on.
        dropped: how many samples have the tokens of an earlier one, and are left out.
        held_out: samples that tell whether training helped.
        unit: what crops are measured in.
    """

    text: TrainingText
    corpus: Corpus
    dropped: int
    held_out: list[holdout.Row]
    unit: str

    def __len__(self) -> int:
        return len(self.corpus)


def prepare_data(
    text: TrainingText, initial: InitialModel, settings: RunSettings, accelerator: Accelerator
) -> TrainingData:
    """Tokenise a text, choose the samples to train on, and start a new static model by idf."""
    options = settings.text
    seed = settings.training.seed
    crops = None
    if options.cropped:
        crops = Crops(seed, options.crop_min, options.crop_max, options.max_seq_length)
    with accelerator.local_main_process_first():  # the others read the cache
        read = load_corpus(
            text,
            initial.tokenizer,
            options.max_seq_length,
            options.max_train_samples,
            crops=None if initial.is_static else crops,
        )
    if crops is not None and initial.is_static:
        read = TokenCroppedCorpus(**vars(read), crops=crops)
    if options.model_name_or_path == STATIC:
        assert isinstance(read, TokenizedCorpus)  # a static model's crops are spans of tokens
        model = initial.embedder.model
        texts_with = read.texts_with(len(table_of(model)))  # (vocabulary,)
        initialize_by_idf(model, texts_with, len(read.offsets) - 1, seed)
    corpus = read.distinct() if options.drop_duplicates else read
    dropped = len(read) - len(corpus)
    held_out: list[holdout.Row] = []
    may_hold_out = options.supervised or options.cropped
    if may_hold_out and options.held_out and not set(settings.evaluation.eval_set) - {"none"}:
        rows = partial(_rows, text, options.max_train_samples)
        held_out, numbers = holdout.hold_out(rows, options.held_out)
        kept = np.setdiff1d(corpus.numbers(np.arange(len(corpus))), numbers)
        corpus = replace(corpus, chosen=kept)
        note = f"no samples are held out: {2 * holdout.LEAST} that differ and can be cut are needed"
        if held_out:
            note = f"{len(held_out)} samples are held out; --held_out 0 trains on all"
        initial.notes.append(note)
    unit = "tokens" if initial.is_static else "words"
    return TrainingData(text, corpus, dropped, held_out, unit)


def _rows(text: TrainingText, most: int | None) -> Iterator[tuple[str, ...]]:
    """Yield the samples of a text, each as its sentences."""
    if most is not None:
        most *= text.columns
    sentences = text.sentences(text.report(), most)
    return zip(*[sentences] * text.columns, strict=True)


def fit_settings(
    settings: RunSettings, data: TrainingData, initial: InitialModel, processes: int
) -> TrainingSettings:
    """Return the settings of the loop for the samples that there are.

    Batch size and a static model's rate follow the samples where the user named neither.

    Raises:
        ParameterError: a batch needs more samples than there are.
    """
    training = settings.training
    fewer = len(data) // processes * processes
    if 2 <= fewer < training.train_batch_size and "train_batch_size" not in settings.given:
        initial.notes.append(f"batches of {fewer}, as there are no more samples")
        training = replace(training, train_batch_size=fewer)
    batch = training.train_batch_size
    if len(data) < batch:
        counts = data.corpus.report.summary()
        reason = f"{batch} exceeds the {len(data)} samples of {data.text.name!r} ({counts})"
        raise ParameterError("train_batch_size", reason)
    rate = training.learning_rate
    if initial.is_static and "learning_rate" not in settings.given:
        _, steps = count_steps(len(data) // batch, training)
        rate *= min(1.0, math.sqrt(FULL_RATE_STEPS / steps))
        training = replace(training, learning_rate=rate)
    config = getattr(initial.embedder.model.transformers_model, "config", None)
    layers = getattr(config, "num_hidden_layers", 0)
    if layers >= DEEP_LAYERS and rate > DEEP_RATE and settings.text.lora is None:
        warnings.warn(
            f"learning_rate: {rate:g} is for a small encoder. One of {layers} layers learns with "
            "1e-5 to 5e-5, as --learning_rate 3e-5 says; higher rates may diverge",
            stacklevel=2,
        )
    return training
