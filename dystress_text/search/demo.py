"""A page on this machine that shows a trained model: type a sentence, see its neighbours and their temperature."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from dystress_text.core.registry import Temperature
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import STSB_DEV
from dystress_text.evaluation.readers import StsPairs, read_sts_benchmark
from dystress_text.files.places import data_root, embedded
from dystress_text.search.demo_server import Demo
from dystress_text.search.index_folder import check_index
from dystress_text.search.loading import load_model, read_lines
from dystress_text.search.sentence_index import SentenceIndex
from dystress_text.search.sentence_vectors import Encoder
from dystress_text.simcse.objective import temperature_of_record
from dystress_text.training.run_folder import PROGRAMS, RECORD, read_record

MINI_STS = "senteval/STS/MiniSTS/mini-sts.csv"


def temperature_of(folder: Path) -> tuple[Temperature | None, str]:
    """The temperature of a run as a function of the similarity, where it is one, and a line that says what it is."""
    record = read_record(folder)
    if record.get("program") != PROGRAMS[0]:
        return None, f"No temperature: the model has no {RECORD} of a text run beside it."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a logit that falls, which training has given
            temperature = temperature_of_record(record)
    except (KeyError, TypeError, UserError) as error:
        return None, f"No temperature: {RECORD} does not say it ({' '.join(str(error).split())})."
    if temperature.needs_progress or temperature.needs_mean_positive:
        return None, f"No temperature: {temperature} changes with the run, not with the similarity alone."
    return temperature, f"Temperature: {temperature}."


def default_sentences() -> tuple[list[str], str]:
    """Sentences to search where none are named, and what they are.

    Raises:
        UserError: there are none.
    """
    prepared = data_root() / "senteval" / STSB_DEV
    if prepared.is_file():
        return _sentences(read_sts_benchmark(prepared, "STS-B dev"))
    try:
        return _sentences(read_sts_benchmark(embedded(MINI_STS), "mini-STS"))
    except UserError as error:
        raise UserError(f"nothing to search: name sentences with --file or --index ({error})") from error


def _sentences(pairs: StsPairs) -> tuple[list[str], str]:
    return pairs.sentences, f"{len(pairs.sentences):,} sentences of {pairs.name}"


def make_demo(options: argparse.Namespace) -> Demo:
    """The demo that the options ask for: loads the model, and encodes the sentences or loads their index.

    Raises:
        UserError: something is missing, damaged or of another model.
    """
    if options.index is not None:
        check_index(options.index)  # first, as loading a model takes a while
    sentences, searched = [], ""
    if options.file is not None:
        sentences = list(read_lines(options.file))
        searched = f"{len(sentences):,} sentences of {Path(options.file).name}"
    elif options.index is None:
        sentences, searched = default_sentences()
    temperature, told = temperature_of(Path(options.model))
    model: Encoder = load_model(options.model, "model")
    if options.index is not None:
        index = SentenceIndex.load(options.index, model)
        searched = f"{len(index.sentences):,} sentences of the index {options.index.resolve().name}"
    else:
        index = SentenceIndex.build(model, sentences, progress=True)
    return Demo(Path(options.model).resolve().name, index, searched, temperature, told, options.top_k)
