"""Every GPU figure of this project, in three parts of under ten minutes each. README.md beside this file says how.

    python tests/gpu/kit.py --part 1 --output gpu [--corpus wiki.txt] [--items dropout suite]

Each item is a program of its own with a limit of seconds. When it ends, ``ITEM.json`` holds its status, what it
measured (its last line, where that is JSON), its last lines and the machine. An item that fails or runs out of time
does not keep the others from running.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
PART_SECONDS = 590  # of the limits of a part together
MINI_STS = ROOT / "dystress_text" / "embedded" / "senteval" / "STS" / "MiniSTS" / "mini-sts.csv"


class Item(NamedTuple):
    """A program, run from the checkout's root."""

    name: str
    limit: int  # seconds it may take
    command: str  # the program and its options; ``{corpus}`` is a file of sentences
    small: str = ""  # further options for a test on a CPU, which override the command's


_CHECK, _SPEED = "tests/gpu/checks.py --corpus {corpus}", "tests/benchmarks/training_speed.py --corpus {corpus}"
_SMALL = "--steps 2 --batch 6"

PARTS: dict[int, tuple[Item, ...]] = {
    1: (
        Item("dropout", 30, f"{_CHECK} dropout", "--batch 4"),
        Item("equal", 50, f"{_CHECK} equal --steps 20", _SMALL),
        Item("objectives-text", 100, f"{_CHECK} objectives text", f"{_SMALL} --only macl"),
        Item("objectives-images", 100, f"{_CHECK} objectives images", f"{_SMALL} --only dino"),
        Item("killed-text", 55, f"{_CHECK} killed text --steps 400", "--steps 8 --batch 6"),
        Item("killed-images", 55, f"{_CHECK} killed images --steps 400"),
        Item("suite", 200, "-m pytest tests -m 'not slow' -p no:cacheprovider --tb=line -n 14"),
    ),
    2: (
        Item("speed-base", 250, f"{_SPEED} --steps 240 --repeats 3 --layers 12 --width 768 --vocabulary 30522"),
        Item("speed-small", 120, f"{_SPEED} --steps 240 --repeats 3 --model dystress_text/embedded/bert-mini-wiki",
             f"{_SMALL} --repeats 1"),
    ),
    3: (
        Item("loss", 250, "tests/benchmarks/loss_core.py --sizes 64 1024 4096 16384 65536 --repeats 3",
             "--sizes 8 --dim 8 --repeats 1 --objectives NT-Xent --temperatures cosine"),
    ),
}  # fmt: skip


def run_item(command: list[str], limit: float, env: dict[str, str]) -> dict[str, Any]:
    """Run a program to its end or its limit; what it left is killed."""
    start, status = time.monotonic(), "out of time"
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        process_group=0,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=limit)
        status = "measured" if process.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    lines = said.splitlines()[-40:]
    result = json.loads(lines.pop()) if lines and lines[-1].startswith("{") else None
    return {"status": status, "seconds": round(time.monotonic() - start, 1), "result": result, "last_lines": lines}


def run_items(items: Sequence[Item], about: dict[str, Any], output: Path, corpus: Path) -> int:
    """Run items one after another; 1 if one has not measured."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    statuses = set()
    for item in items:
        words = shlex.split(item.command.format(corpus=corpus))
        record = run_item([sys.executable, *words], item.limit, env)
        unfinished = output / f".{item.name}"
        unfinished.write_text(json.dumps({**about, "command": words, **record}, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(output / f"{item.name}.json")
        print("\n".join([*record["last_lines"], f"{item.name}: {record['status']}, {record['seconds']} s"]))
        statuses.add(record["status"])
    return 0 if statuses == {"measured"} else 1


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=int, choices=sorted(PARTS), required=True)
    parser.add_argument("--output", type=Path, help="folder of the results", required=True)
    parser.add_argument("--corpus", type=Path, help="sentences, one a line (default: the embedded STS set's)")
    parser.add_argument("--items", nargs="+", choices=[item.name for items in PARTS.values() for item in items])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here")
    items = [item for item in PARTS[options.part] if not options.items or item.name in options.items]
    about = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "cores": os.cpu_count(),
             "torch": torch.__version__, "transformers": transformers.__version__}  # fmt: skip
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kit-") as folder:
        corpus = Path(folder) / "sentences.txt"
        rows = [line.split("\t") for line in MINI_STS.read_text(encoding="utf-8").splitlines()]
        corpus.write_text("\n".join(dict.fromkeys(text for row in rows for text in row[5:7])), encoding="utf-8")
        return run_items(items, about, options.output, options.corpus.absolute() if options.corpus else corpus)


if __name__ == "__main__":
    sys.exit(main())
