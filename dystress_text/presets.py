"""The presets by name, and those for images where this is a checkout.

python -m dystress_text.presets
"""

from __future__ import annotations

import subprocess
import sys

from dystress_text.files.places import CHECKOUT
from dystress_text.simcse.presets import PRESETS
from dystress_text.training.presets import listing


def main() -> int:
    """The program; returns its exit code."""
    print("Text, dystress_text/train.py --preset NAME:\n" + listing(PRESETS), flush=True)
    if not (CHECKOUT / "vision").is_dir():  # a wheel has no vision/
        return 0
    print(flush=True)
    return subprocess.run([sys.executable, "-m", "vision.pretraining.presets"], cwd=CHECKOUT).returncode


if __name__ == "__main__":
    sys.exit(main())
