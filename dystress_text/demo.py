"""A page on this machine that shows a trained model: type a sentence, see its neighbours and their temperature.

    dystress demo out/
    dystress demo out/ --index idx --port 8000

``out/`` is a run's folder; another sentence-transformers model works too, without a temperature. The page searches the
sentences of --index (a saved index) or --file (one a line); without them STS-B dev if it is prepared, else the small
set of the package. A search has an address: http://127.0.0.1:PORT/?q=A+man+plays.&second=He+sings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import UserError
from dystress_text.search.__main__ import positive
from dystress_text.search.demo import make_demo
from dystress_text.search.demo_server import DemoServer


def make_parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = OneLineParser("dystress demo", __doc__)
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

    return exit_code("dystress demo", work, "ended")


if __name__ == "__main__":
    sys.exit(main())
