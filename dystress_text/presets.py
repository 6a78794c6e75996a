"""The presets by name, and those for images where this is a checkout.

dystress presets
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.files.places import CHECKOUT
from dystress_text.simcse.presets import PRESETS
from dystress_text.training.presets import listing


def make_parser() -> OneLineParser:
    """The program takes no options."""
    return OneLineParser("dystress presets", __doc__)


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""

    def work() -> bool:
        make_parser().parse_args(argv)
        print("Text, dystress train --preset NAME:\n" + listing(PRESETS), flush=True)
        if CHECKOUT is None:  # a wheel has no vision/
            return True
        print(flush=True)
        return subprocess.run([sys.executable, "-m", "vision.pretraining.presets"], cwd=CHECKOUT).returncode == 0

    return exit_code("dystress presets", work)


if __name__ == "__main__":
    sys.exit(main())
