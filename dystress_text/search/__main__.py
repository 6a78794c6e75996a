"""Search in many sentences by the similarity of their vectors, with an index that is saved and loaded.

    dystress search build --model out --file sentences.txt --index idx
    dystress search add --model out --file more.txt --index idx
    dystress search query --index idx --model out "A man plays a guitar." --top_k 5
    dystress search query --index idx --model out --file questions.txt --json
    dystress search query --index idx --model out "A man plays a guitar." --false_alarm 1e-4

The file holds one sentence a line in UTF-8 (.gz, .xz and .bz2 too; - is standard input) and is never held in memory.
``add`` puts sentences behind those of an index; the index stays as it was until the new one is complete. Search is
exact; ``build --approximate`` adds a graph (the ``search`` extra) for corpora where exact search is too slow.
``--false_alarm`` takes the threshold from the similarities of random pairs of sentences, which training and
``calibrate`` leave in the model's folder, and ``build`` in the index: of 10,000 sentences that have nothing to do with
the query, one passes 1e-4.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import UserError
from dystress_text.evaluation.random_pairs import RandomPairs
from dystress_text.search.index_folder import check_index, check_new_folder
from dystress_text.search.loading import load_model, read_lines
from dystress_text.search.nearest_rows import usearch
from dystress_text.search.sentence_index import Match, SentenceIndex, add_to_index, build_index
from dystress_text.search.stored_vectors import DTYPES


def positive(text: str) -> int:
    """An argument that is a number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number from 1 is needed, got {text!r}")
    return int(text)


def finite(text: str) -> float:
    """An argument that is a number, neither infinite nor NaN."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"a finite number is needed, got {text!r}")
    return number


def share(text: str) -> float:
    """An argument that is a number between 0 and 1."""
    number = finite(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"a rate between 0 and 1 is needed, got {text!r}")
    return number


class _CommandParser(OneLineParser):
    """A command's parser; Python's versions pass it different options, which it ignores."""

    def __init__(self, prog: str, **_: Any) -> None:
        super().__init__(prog, __doc__)


def make_parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = OneLineParser("dystress search", __doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_CommandParser)
    build, add, query = (commands.add_parser(name) for name in ("build", "add", "query"))
    for command in (build, add, query):
        command.add_argument("--model", required=True, help="sentence-transformers folder or name")
        command.add_argument("--index", required=True, type=Path, help="folder of the index")
        command.add_argument("--batch_size", type=positive, default=64, help="sentences encoded at a time (default 64)")
    for command in (build, add):
        command.add_argument("--file", required=True, help="sentences, one a line; - is standard input")
    build.add_argument(
        "--dtype",
        choices=DTYPES,
        default="fp32",
        help="of stored vectors; fp16 takes half the space of fp32, int8 a quarter, binary 1/32",
    )
    build.add_argument("--approximate", action="store_true", help="add a graph for approximate search")
    query.add_argument("queries", nargs="*", help="texts to search for")
    query.add_argument("--file", help="queries, one a line; - is standard input")
    query.add_argument("--top_k", type=positive, default=5, help="matches for each query (default 5)")
    query.add_argument("--threshold", type=finite, help="leave out matches with a lower score")
    query.add_argument(
        "--false_alarm",
        type=share,
        metavar="RATE",
        help="leave out matches with a score that more than this share of random pairs has, such as 1e-4",
    )
    query.add_argument("--json", action="store_true", help="a line of JSON for each query")
    return parser


def _build(options: argparse.Namespace) -> None:
    check_new_folder(options.index)  # first, because the rest may take hours
    if options.approximate:
        usearch()
    sentences = read_lines(options.file)
    random_pairs = RandomPairs.load(Path(options.model))
    model = load_model(options.model)
    index = build_index(model, sentences, options.index, options.batch_size, True, options.dtype, random_pairs)
    if options.approximate:
        index.approximate().save(options.index, overwrite=True)
    _describe(index, options.index)


def _add(options: argparse.Namespace) -> None:
    check_index(options.index)
    sentences = read_lines(options.file)
    index = add_to_index(load_model(options.model), sentences, options.index, options.batch_size, True)
    _describe(index, options.index)


def _describe(index: SentenceIndex, folder: Path) -> None:
    stored = index.stored
    print(f"{str(folder)!r}: {len(stored):,} sentences, {stored.dim} dimensions, {stored.dtype}")


def _query(options: argparse.Namespace) -> None:
    queries = options.queries + (list(read_lines(options.file)) if options.file else [])
    if not queries or not all(query.strip() for query in queries):
        raise UserError("no query: give a text, or --file with one a line" if not queries else "a query is empty")
    check_index(options.index)
    index = SentenceIndex.load(options.index, load_model(options.model))
    found = index.search(queries, options.top_k, options.threshold, options.batch_size, options.false_alarm)
    for query, matches in zip(queries, found, strict=True):
        if options.json:
            record = {"query": query, "matches": [match._asdict() for match in matches]}
            print(json.dumps(record, ensure_ascii=False))
        else:
            print(query, *(_line(match, index.random_pairs) for match in matches), sep="\n")


def _line(match: Match, random_pairs: RandomPairs | None) -> str:
    """Score, false-alarm rate where it is known, row and sentence."""
    rate = "" if match.false_alarm is None or random_pairs is None else f"{random_pairs.said(match.false_alarm):>8}  "
    return f"  {match.score:.4f}  {rate}{match.row:>9}  {' '.join(match.sentence.split())}"


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""

    def work() -> bool:
        options = make_parser().parse_args(argv)
        {"build": _build, "add": _add, "query": _query}[options.command](options)
        return True

    return exit_code("dystress search", work)


if __name__ == "__main__":
    sys.exit(main())
