"""SentEval's transfer tasks by eval/senteval.py: figures and seconds. The mini suite where the real sets are not ready.

python tests/gpu/transfer.py [--model FOLDER] [--mode test]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from programs import SMALL_ENCODER, call, device_name, here, report

from dystress_text import senteval
from dystress_text.evaluation.catalogue import suite_folder


def main() -> int:
    """Evaluate; 1 if a task is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SMALL_ENCODER)
    parser.add_argument("--mode", default="test")
    parser.add_argument("--tasks", nargs="+", default=["transfer"])
    options = parser.parse_args()
    suite = "senteval" if suite_folder("senteval", None).is_dir() else "mini"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        words = ["--model", options.model, "--pooler_type", "avg", "--suite", suite, "--mode", options.mode]
        start = time.perf_counter()
        error = call(senteval.main, [*words, "--geometry", "none", "--output", str(file), "--tasks", *options.tasks])
        seconds = time.perf_counter() - start
        results = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    print(f"{suite}, {seconds:.1f} s: {error or 'all tasks'}")
    report({"suite": suite, "seconds": seconds, "device": device_name(here()), "error": error, "results": results})
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())
