"""A page on this machine that shows a trained model: type a sentence, see its neighbours and their temperature.

    python -m dystress_text.demo out/
    python -m dystress_text.demo out/ --index idx --port 8000

``out/`` is a run's folder; any sentence-transformers model will do, without a temperature then. Searched are the
sentences of --index (a saved index) or of --file (one a line), else those of STS-B dev where they are prepared, else
the small set that comes with a checkout. A search can be linked: http://127.0.0.1:PORT/?q=A+man+plays.&second=He+sings.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from dystress_text.build_loss import temperature_of_record
from dystress_text.command_line import OneLineParser, exit_code
from dystress_text.core.registry import Temperature
from dystress_text.demo_server import Demo, DemoServer
from dystress_text.errors import UserError
from dystress_text.index_folder import check_index
from dystress_text.locate import STSB_DEV, data_root, embedded
from dystress_text.run_folder import PROGRAMS, RECORD, read_record
from dystress_text.search import load_model, positive, read_lines
from dystress_text.sentence_index import SentenceIndex
from dystress_text.sentence_vectors import Encoder
from dystress_text.sts import StsPairs, read_sts_benchmark

MINI_STS = "senteval/STS/MiniSTS/mini-sts.csv"


def make_parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = OneLineParser("demo", __doc__)
    parser.add_argument("model", help="a run's folder, or another sentence-transformers model")
    searched = parser.add_mutually_exclusive_group()
    searched.add_argument("--index", type=Path, help="saved index to search")
    searched.add_argument("--file", help="sentences to search, one a line")
    parser.add_argument("--port", type=_port, default=0, help="to listen on (default: a free one)")
    parser.add_argument("--top_k", type=positive, default=10, help="neighbours of a sentence (default 10)")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"a number from 0 to 65535 is needed, got {text!r}")
    return int(text)


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


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""

    def work() -> bool:
        options = make_parser().parse_args(argv)
        demo = make_demo(options)
        try:
            server = DemoServer(demo, options.port)
        except OSError as error:
            raise UserError(f"--port: cannot listen on {options.port}: {error.strerror}") from error
        with server:
            print(f"{server.url} searches {demo.searched}. Ctrl-C ends it.", flush=True)
            server.serve_forever()
        return True

    return exit_code("demo", work, "ended")


if __name__ == "__main__":
    sys.exit(main())
