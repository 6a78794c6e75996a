"""Write lines of about 26 tokens, where no corpus is at hand: two sentences of mini-STS each.

python tests/gpu/sentences.py sentences.txt 36000
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from dystress_text.io.paths import EMBEDDED


def main() -> None:
    """Write the lines to the file."""
    file = EMBEDDED / "senteval" / "STS" / "MiniSTS" / "mini-sts.csv"
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    single = sorted({text for row in rows for text in row[5:7]})
    generator = random.Random(0)
    lines: dict[str, None] = {}
    while len(lines) < int(sys.argv[2]):
        lines[" ".join(generator.sample(single, 2))] = None
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
