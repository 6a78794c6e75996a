"""Every GPU figure of this project, in three parts of under ten minutes each. README.md beside this file says how.

    python tests/gpu/kit.py --part 1 --output gpu [--corpus wiki.txt] [--items dropout suite]
    python tests/gpu/kit.py --dry_run                  # all parts, small, on the CPU

Each item is a program of its own with a limit of seconds. When it ends, ``partN-ITEM.json`` holds its status, what it
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
PART_SECONDS = 590  # of the limits of a part together
DRY_SECONDS = 900  # of an item in a dry run, whose machine may be busy
MINI_STS = ROOT / "dystress_text" / "embedded" / "senteval" / "STS" / "MiniSTS" / "mini-sts.csv"


@dataclass(frozen=True)
class Item:
    """A program, run from the checkout's root."""

    name: str
    limit: int  # seconds it may take
    command: str  # the program and its options; ``{corpus}`` is a file of sentences
    small: str  # further options for the dry run, which override the command's


_CHECK, _SPEED = "tests/gpu/checks.py --corpus {corpus}", "tests/benchmarks/training_speed.py --corpus {corpus}"
_SMALL = "--steps 2 --batch 6"

PARTS: dict[int, tuple[Item, ...]] = {
    1: (
        Item("dropout", 30, f"{_CHECK} dropout", "--batch 4"),
        Item("equal", 50, f"{_CHECK} equal --steps 20", _SMALL),
        Item("objectives-text", 100, f"{_CHECK} objectives text", f"{_SMALL} --only macl"),
        Item("objectives-images", 100, f"{_CHECK} objectives images", f"{_SMALL} --only dino"),
        Item("killed-text", 55, f"{_CHECK} killed text --steps 400", "--steps 8 --batch 6"),
        Item("killed-images", 55, f"{_CHECK} killed images --steps 400", "--steps 12 --batch 6"),
        Item("suite", 200, "-m pytest tests -m 'not slow' -p no:cacheprovider --tb=line -n 14", "-n 0 -k room"),
    ),
    2: (
        Item("speed-base", 250, f"{_SPEED} --steps 240 --repeats 3 --layers 12 --width 768 --vocabulary 30522",
             f"{_SMALL} --repeats 1 --layers 1 --width 32 --vocabulary 9000"),
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


def run_parts(options: argparse.Namespace, output: Path, corpus: Path) -> int:
    """Run the parts that are asked for; 1 if an item has not measured."""
    small = options.dry_run
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    if small:
        env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and not small else "cpu"
    machine = {"device": device, "cuda": torch.version.cuda, "cores": os.cpu_count(),
               "torch": torch.__version__, "transformers": transformers.__version__}  # fmt: skip
    if not small and device == "cpu":
        raise SystemExit("kit.py: torch sees no GPU here; --dry_run runs on the CPU")
    statuses = set()
    for part in [options.part] if options.part else PARTS:
        for item in PARTS[part]:
            if options.items and item.name not in options.items:
                continue
            words = shlex.split(item.command.format(corpus=corpus)) + (shlex.split(item.small) if small else [])
            record = run_item([sys.executable, *words], DRY_SECONDS if small else item.limit, env)
            about = {"part": part, "item": item.name, "dry_run": small, "command": words, "machine": machine}
            unfinished = output / f".part{part}-{item.name}"
            unfinished.write_text(json.dumps(about | record, indent=1) + "\n", encoding="utf-8")
            unfinished.replace(output / f"part{part}-{item.name}.json")
            print("\n".join([*record["last_lines"], f"{item.name}: {record['status']}, {record['seconds']} s"]))
            statuses.add(record["status"])
    return 0 if statuses == {"measured"} else 1


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=int, choices=sorted(PARTS))
    parser.add_argument("--output", type=Path, help="folder of the results; a dry run keeps none by default")
    parser.add_argument("--corpus", type=Path, help="sentences, one a line (default: the embedded STS set's)")
    parser.add_argument("--items", nargs="+", choices=[item.name for items in PARTS.values() for item in items])
    parser.add_argument("--dry_run", action="store_true", help="small, on the CPU, all parts unless one is given")
    options = parser.parse_args()
    if not options.dry_run and (options.part is None or options.output is None):
        parser.error("--part and --output are needed, or --dry_run")
    with tempfile.TemporaryDirectory(prefix="kit-") as folder:
        corpus, output = Path(folder) / "sentences.txt", (options.output or Path(folder)).absolute()
        output.mkdir(parents=True, exist_ok=True)
        rows = [line.split("\t") for line in MINI_STS.read_text(encoding="utf-8").splitlines()]
        corpus.write_text("\n".join(dict.fromkeys(text for row in rows for text in row[5:7])), encoding="utf-8")
        return run_parts(options, output, options.corpus.absolute() if options.corpus else corpus)


if __name__ == "__main__":
    sys.exit(main())
