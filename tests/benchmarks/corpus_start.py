"""What the start of a run costs, from the command line to the first batch: processor seconds, wall time and memory.

    python tests/benchmarks/corpus_start.py --text lines.txt --trees /tmp/old . [--repeats 3] [--views dropout crop]

``--trees`` are checkouts of the package, such as ``git worktree add /tmp/old 03973ea`` and ``.``. Each starts first
with an empty cache, then all in turn with what the first start left there, without and with ``--drop_duplicates``. All
imports are counted. On a busy machine the processor seconds count; wall time says how busy it was. With ``--cache`` the
caches stay in that folder, and a first start that is there already is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

PROGRAM = """
import json, os, resource, sys, time
from dystress_text.simcse.task import SimcseTask

def load(task, indices, step):
    used = resource.getrusage(resource.RUSAGE_SELF)
    print("\\n" + json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6]), flush=True)
    os._exit(0)

SimcseTask.load = load  # the first batch is asked for: the start is over
from dystress_text.programs.train import main
main(sys.argv[1:])
"""


def start(tree: Path, text: Path, cache: Path, views: str, drop: str) -> tuple[float, float, float]:
    """Processor seconds, seconds and GB of one start."""
    with tempfile.TemporaryDirectory() as output:
        options = {
            "preset": "small", "train_file": text.resolve(), "eval_set": "none", "output_dir": output, "max_steps": 1,
            "views": views, "drop_duplicates": drop,
        }  # fmt: skip
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "DYSTRESS_CACHE": str(cache)}
        began = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, *flags], env=environment, cwd=output, stdout=subprocess.PIPE, check=True
        )
        processor, memory = json.loads(ran.stdout.decode().splitlines()[-1])
        return processor, time.perf_counter() - began, memory


def main() -> None:
    """Print a line for each start, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--trees", type=Path, nargs="+", required=True)
    parser.add_argument("--views", nargs="+", default=["dropout", "crop"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    found: dict[tuple[str, str, str, Path], list[tuple[float, float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for views in options.views:
            turns = [("first", "no")] + [("second", drop) for drop in ("no", "yes")] * options.repeats
            for which, drop in turns:
                for i, tree in enumerate(options.trees):
                    cache = (options.cache or Path(folder)) / f"{i}-{views}"
                    if which == "first" and cache.is_dir():
                        continue
                    figures = start(tree, options.text, cache, views, drop)
                    found[views, which, drop, tree].append(figures)
                    print(f"{views}, {which}, drop_duplicates {drop}, {tree}: {figures}", flush=True)
    for key, several in found.items():
        processor, wall, memory = (median(column) for column in zip(*several, strict=True))
        least, most = min(several)[0], max(several)[0]
        print(*key, f"{processor:.1f} s ({least:.1f} to {most:.1f}), wall {wall:.0f} s, {memory:.2f} GB", sep=" | ")


if __name__ == "__main__":
    main()
