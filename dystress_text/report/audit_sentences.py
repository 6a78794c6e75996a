"""A rule on the sentences of a file, without training: batches as in training, but the model stays as it is."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from dystress_text.cli.progress import progress_bar
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.encoders.encoder import check_length, check_views
from dystress_text.encoders.saved_model import find_saved, read_saved
from dystress_text.errors import ParameterError, reason_of
from dystress_text.files.text_lines import UNPACK_ERRORS, CorpusReport, open_text, read_sentences
from dystress_text.simcse.corpus import corpus_in_memory
from dystress_text.simcse.run import model_path
from dystress_text.simcse.settings import TextSettings
from dystress_text.simcse.start import load_start
from dystress_text.simcse.task import SimcseTask
from dystress_text.training.batches import BatchOrder, load_ahead
from dystress_text.training.similarity_log import SimilarityLog

MOST_SENTENCES = 10_000


def drawn_sentences(file: Path) -> list[str]:
    """Distinct sentences of at most so many of a file, drawn at random, the same in each call.

    A sample drawn while reading: no more than so many sentences are held in memory.
    """
    rng, kept, report = np.random.default_rng(0), list[str](), CorpusReport()
    try:
        with sys.stdin.buffer if str(file) == "-" else open_text(file) as stream:
            for count, sentence in enumerate(read_sentences(stream, report), 1):
                if len(kept) < MOST_SENTENCES:
                    kept.append(sentence)
                elif (place := int(rng.integers(count))) < MOST_SENTENCES:
                    kept[place] = sentence
    except (OSError, *UNPACK_ERRORS) as error:
        raise ParameterError("sentences", f"cannot read {str(file)!r}: {reason_of(error)}") from error
    print(f"{file}: {report.summary()}", file=sys.stderr)
    return list(dict.fromkeys(kept))


@torch.no_grad()
def log_of_sentences(
    model: str,
    text: Mapping[str, Any],
    given: Collection[str],
    sentences: Sequence[str],
    objective: ContrastiveLoss,
    batch_size: int,
) -> list[dict[str, Any]]:
    """The lines of a similarity log of one pass over sentences, in a random order that is always the same.

    The encoder is in training mode: the two views of a sentence differ in their dropout. A head that was dropped after
    training is not there.

    Args:
        model: folder or name.
        text: options of :class:`TextSettings` about the encoder.
        given: those of them that the user named.
        sentences: different ones.
        objective: what is observed.
        batch_size: sentences in a batch.
    """
    path = model_path(model)
    folder = find_saved(path)
    saved = None if folder is None else read_saved(folder)
    head = None if saved is None or saved.dense is not None else False
    settings = TextSettings(model_name_or_path=path, mlp_head=head, **text)
    accelerator = Accelerator()
    torch.manual_seed(0)
    start = load_start(path, settings, given)
    encoder = start.model.to(accelerator.device)
    check_length(settings.max_seq_length, start.tokenizer, encoder)
    check_views(encoder, start.tokenizer)
    corpus = corpus_in_memory(list(sentences), start.tokenizer, settings.max_seq_length)
    task = SimcseTask(encoder, start.tokenizer, corpus, objective.to(accelerator.device))
    log = SimilarityLog(objective, threshold=0.0)
    task.begin_step(0, 0)
    encoder.train()
    batches = BatchOrder(len(corpus), min(batch_size, len(corpus)), seed=0).epoch(0)
    loaded = load_ahead(lambda rows: task.load(rows, 0), batches, accelerator.device)
    for batch in progress_bar(loaded, total=len(batches), desc="encoding", unit=" batches"):
        log.add(task.embed(encoder, batch).views)
        log.end_step()
    return [{"step": step, **line} for step, line in enumerate(log.read(accelerator), 1)]
