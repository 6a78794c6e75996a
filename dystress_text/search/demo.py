"""What the demo shows: a model, the sentences to search, and the temperature of its run."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from dystress_text.core.rule import PairRule
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import STSB_DEV, eval_pairs
from dystress_text.evaluation.random_pairs import RandomPairs
from dystress_text.files.places import data_root
from dystress_text.search.demo_server import Demo
from dystress_text.search.index_folder import check_index
from dystress_text.search.loading import load_model, read_lines
from dystress_text.search.sentence_index import SentenceIndex
from dystress_text.search.sentence_vectors import Encoder
from dystress_text.simcse.objective import temperature_of_record
from dystress_text.training.run_folder import PROGRAMS, RECORD, read_record


def temperature_of(folder: Path) -> tuple[PairRule | None, str]:
    """The temperature of a run, if it depends on the similarity alone, and a line that says what it is."""
    record = read_record(folder)
    if record.get("program") != PROGRAMS[0]:
        return None, f"No temperature: the model has no {RECORD} of a text run."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about logits that fall; training has shown them
            temperature = temperature_of_record(record)
    except (KeyError, TypeError, UserError) as error:
        return None, f"No temperature: {RECORD} does not say it ({' '.join(str(error).split())})."
    if temperature.needs_progress or temperature.needs_mean_positive:
        return None, f"No temperature: {temperature} changes with the run, not with the similarity alone."
    return temperature, f"Temperature: {temperature}."


def default_sentences() -> tuple[list[str], str]:
    """The sentences to search if the user names none, and a line that says what they are."""
    prepared = (data_root() / "senteval" / STSB_DEV).is_file()
    pairs = eval_pairs("stsb_dev" if prepared else "mini_sts")
    assert pairs is not None  # only the set ``none`` has no pairs
    return pairs.sentences, f"{len(pairs.sentences):,} sentences of {pairs.name}"


def make_demo(options: argparse.Namespace) -> Demo:
    """Load the model, and encode the sentences or load their index, as the options say.

    Raises:
        UserError: something is missing, damaged or of another model.
    """
    if options.index is not None:
        check_index(options.index)  # first, because loading a model takes a while
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
        random_pairs = RandomPairs.load(Path(options.model))
        index = SentenceIndex.build(model, sentences, progress=True, random_pairs=random_pairs)
    return Demo(Path(options.model).resolve().name, index, searched, temperature, told, options.top_k)
