"""Measure which similarity a model gives to random pairs of sentences, so that its scores can be asked by their rate.

    dystress calibrate --model out --file sentences.txt
    dystress calibrate --model NAME --file sentences.txt --output folder    # a model of the hub
    dystress calibrate --index idx    # an index that was built without; its own sentences

Training does this at its end. It is worth doing again for another kind of text: the rates hold for sentences like those
that were measured. The file holds one sentence a line (.gz, .xz and .bz2 too; - is standard input). The result,
``random_pairs.json``, goes into the model's folder or into ``--output``; ``search build`` takes it over.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import UserError
from dystress_text.evaluation.random_pairs import (
    FEWEST_SENTENCES,
    MOST_SENTENCES,
    RandomPairs,
    random_pairs,
)
from dystress_text.search.__main__ import positive
from dystress_text.search.loading import load_model, read_lines
from dystress_text.search.sentence_index import calibrate_index
from dystress_text.search.sentence_vectors import encoded
from dystress_text.training.run_folder import RANDOM_PAIRS


def make_parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = OneLineParser("dystress calibrate", __doc__)
    add = parser.add_argument
    add("--model", help="sentence-transformers folder or name")
    add("--file", help="sentences, one a line; - is standard input")
    add("--index", type=Path, help="folder of an index, in place of --model and --file")
    add("--output", type=Path, metavar="FOLDER", help="where the result goes; default the model's folder")
    add(
        "--sentences",
        type=_sentences,
        default=MOST_SENTENCES,
        help=f"most sentences, drawn at random (default {MOST_SENTENCES:,})",
    )
    add("--batch_size", type=positive, default=64, help="sentences encoded at a time (default 64)")
    return parser


def _sentences(text: str) -> int:
    if not text.isdecimal() or not FEWEST_SENTENCES <= int(text) <= MOST_SENTENCES:
        raise argparse.ArgumentTypeError(
            f"a number from {FEWEST_SENTENCES} to {MOST_SENTENCES} is needed, got {text!r}"
        )
    return int(text)


def drawn(sentences: Iterable[str], most: int) -> list[str]:
    """Distinct sentences of at most ``most`` that are drawn at random, the same in each call.

    All of a text is read, and no more than ``most`` sentences are held in memory (reservoir sampling).
    """
    rng, kept = np.random.default_rng(0), list[str]()
    for count, sentence in enumerate(sentences, 1):
        if len(kept) < most:
            kept.append(sentence)
        elif (place := int(rng.integers(count))) < most:
            kept[place] = sentence
    return list(dict.fromkeys(kept))


def _of_model(options: argparse.Namespace) -> RandomPairs:
    if options.model is None or options.file is None:
        raise UserError("--model and --file are needed, or --index")
    folder = options.output or Path(options.model)
    if not folder.is_dir():
        raise UserError(f"--output: a folder is needed for the result, and {str(folder)!r} is none")
    sentences = drawn(read_lines(options.file), options.sentences)
    if len(sentences) < FEWEST_SENTENCES:
        raise UserError(f"--file: {FEWEST_SENTENCES} distinct sentences are needed, got {len(sentences)}")
    chunks = [vectors for _, vectors in encoded(load_model(options.model), sentences, options.batch_size, True)]
    source = "standard input" if options.file == "-" else Path(options.file).name
    found = random_pairs(np.concatenate(chunks), source)
    try:
        found.save(folder)
    except OSError as error:
        raise UserError(f"--output: cannot write to {str(folder)!r}: {error.strerror or error}") from error
    print(f"{folder / RANDOM_PAIRS}: ", end="")
    return found


def _of_index(options: argparse.Namespace) -> RandomPairs:
    for name in ("model", "file", "output"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name}: not with --index, whose own sentences are taken")
    found = calibrate_index(options.index)
    print(f"{options.index}: ", end="")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""

    def work() -> bool:
        options = make_parser().parse_args(argv)
        found = _of_model(options) if options.index is None else _of_index(options)
        print(found.about())
        print("false-alarm rate  similarity")
        for rate, cosine in found.table():
            print(f"{rate:>16}  {cosine:10.3f}")
        print(f"These pairs tell rates down to {found.finest:.1e}{found.more()}.")
        return True

    return exit_code("dystress calibrate", work)


if __name__ == "__main__":
    sys.exit(main())
