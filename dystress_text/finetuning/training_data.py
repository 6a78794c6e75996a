"""Prepare the samples of a run: tokenise them, drop duplicates, hold rows out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dystress_text.errors import ParameterError
from dystress_text.finetuning.corpus import Corpus, TokenCroppedCorpus, load_corpus
from dystress_text.finetuning.crops import Crops
from dystress_text.finetuning.held_out import TrainingRow, hold_out
from dystress_text.finetuning.initial_model import TextModel
from dystress_text.finetuning.settings import FineTuningSettings
from dystress_text.finetuning.texts import TrainingText
from dystress_text.models.static import STATIC, initialize_by_idf, set_document_row, table_of
from dystress_text.models.text_reader import TextReader
from dystress_text.training.batches import count_steps
from dystress_text.training.settings import TrainingSettings

# A static model takes its preset's rate up to this many steps, and rate x sqrt(250 / steps) in a
# longer run, so that tokens keep roughly the weight of their idf.
FULL_RATE_STEPS = 250


@dataclass(frozen=True)
class TrainingData:
    """The samples that a run trains on, and its held-out rows.

    Attributes:
        text: the training text.
        corpus: the samples to train on.
        held_out: rows to measure before and after training.
    """

    text: TrainingText
    corpus: Corpus
    held_out: list[TrainingRow]

    def __len__(self) -> int:
        return len(self.corpus)


def prepare_data(
    text: TrainingText, initial: TextModel, settings: FineTuningSettings
) -> TrainingData:
    """Tokenise a text and select samples; initialise the vectors of a new static model by idf."""
    options = settings.text
    seed = settings.training.seed
    crops = None
    if options.cropped:
        crops = Crops(seed, options.crop_min, options.crop_max, options.max_seq_length)
    reader = TextReader(initial.embedder.model, options.max_seq_length)
    most = options.max_train_samples
    # crops of a static model are cut from the tokens
    whole = load_corpus(text, reader, most, crops=None if initial.is_static else crops)
    if crops is not None and initial.is_static:
        whole = TokenCroppedCorpus(**vars(whole), crops=crops)
    if options.model_name_or_path == STATIC:
        model = initial.embedder.model
        frequencies = whole.document_frequencies(len(table_of(model)))  # (vocabulary,)
        initialize_by_idf(model, frequencies, len(whole.offsets) - 1, seed)
        set_document_row(model, whole.sentences())
    corpus = whole.distinct() if options.drop_duplicates else whole
    held_out: list[TrainingRow] = []
    has_set = bool(set(settings.evaluation.eval_set) - {"none"})
    if options.supervised and options.held_out and not has_set:
        sentences = text.sentences(most)
        rows = zip(*[sentences] * text.columns, strict=True)
        held_out, excluded = hold_out(list(rows), options.held_out)
        kept = np.setdiff1d(corpus.original_indices(np.arange(len(corpus))), excluded)
        if held_out:
            note = f"{len(held_out)} samples are held out"
            repeating = len(corpus) - len(kept) - len(held_out)
            if repeating > 0:
                note += f", and {repeating:,} others that repeat one of their texts are left out"
            initial.notes.append(note)
        corpus = replace(corpus, selected=kept)
    return TrainingData(text, corpus, held_out)


def fit_settings(
    settings: FineTuningSettings, data: TrainingData, initial: TextModel, processes: int
) -> TrainingSettings:
    """Return the training settings with a batch size and learning rate that suit the data.

    Values that the user gave stay as they are.

    Raises:
        ParameterError: there are fewer samples than a batch needs.
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
    if initial.is_static and "learning_rate" not in settings.given:
        _, steps = count_steps(len(data) // batch, training)
        rate = training.learning_rate * min(1.0, math.sqrt(FULL_RATE_STEPS / steps))
        training = replace(training, learning_rate=rate)
    return training
