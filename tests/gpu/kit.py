"""Every GPU figure of this project, in three parts of under ten minutes each. README.md beside this file says how.

    python tests/gpu/kit.py --part 1 --output gpu [--wheels wheels] [--corpus wiki.txt] [--items dropout suite]
    python tests/gpu/kit.py --dry_run                  # all parts, small, on the CPU

Each item is a program of its own with a limit of seconds. When it ends, ``partN-ITEM.json`` holds its status, what it
measured (the JSON of its last line), its last lines and the machine. An item that fails or runs out of time does not
keep the others from running. The limits of a part fit under its ten minutes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PART_SECONDS = 590  # of the limits of a part together
DRY_SECONDS = 900  # of an item in a dry run, whose machine may be busy
LAST_LINES = 40
MINI_STS = ROOT / "dystress_text" / "embedded" / "senteval" / "STS" / "MiniSTS" / "mini-sts.csv"
CORPUS = "from dystress_text.simcse.quickstart import write_documentation_corpus as w; print(w())"
MACHINE = """
import importlib.metadata as m, json, os, platform, torch
cuda = torch.cuda.is_available()
names = ("torch", "transformers", "sentence-transformers", "accelerate", "tokenizers", "numpy", "kornia")
print(json.dumps({
    "device": torch.cuda.get_device_name() if cuda else "cpu", "python": platform.python_version(),
    "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version() if cuda else None, "cores": os.cpu_count(),
    "versions": {name: m.version(name) for name in names if any(m.distributions(name=name))},
}))
"""


@dataclass(frozen=True)
class Item:
    """A program whose last line is JSON.

    Attributes:
        name: of the item.
        limit: seconds it may take.
        command: the program and its options, from the checkout's root; ``{corpus}`` is a file of sentences.
        small: further options for the dry run; they override the command's.
    """

    name: str
    limit: int
    command: str
    small: str


_SPEED = "tests/benchmarks/training_speed.py --corpus {corpus} --steps 240 --repeats 3"
_BASE = "--layers 12 --width 768 --vocabulary 30522"
_TINY = "--layers 1 --width 32 --vocabulary 9000"

PARTS: dict[int, tuple[Item, ...]] = {
    1: (
        Item("dropout", 30, "tests/gpu/correctness.py dropout", "--rows 4"),
        Item("equal", 50, "tests/gpu/correctness.py equal --corpus {corpus}", "--steps 3 --batch 8"),
        Item("objectives-text", 100, "tests/gpu/objectives.py text --corpus {corpus}",
             "--steps 2 --batch 6 --precisions no --only infonce macl"),
        Item("objectives-images", 100, "tests/gpu/objectives.py images",
             "--steps 2 --batch 6 --precisions bf16 --only ntxent dino"),
        Item("killed-text", 55, "tests/gpu/killed.py text --corpus {corpus}", "--steps 12 --save_steps 4 --batch 6"),
        Item("killed-images", 55, "tests/gpu/killed.py images", "--steps 12 --save_steps 4 --batch 6"),
        Item("suite", 200, "tests/gpu/suite.py --seconds 165", "--paths tests/cli --processes 0"),
    ),
    2: (
        Item("speed-base", 190, f"{_SPEED} {_BASE}", f"{_TINY} --steps 2 --batch 6 --repeats 1"),
        Item("speed-small", 90, f"{_SPEED} --model dystress_text/embedded/bert-mini-wiki",
             "--steps 1 --batch 6 --repeats 1"),
        Item("profile", 60, f"tests/gpu/text.py profile --corpus {{corpus}} {_BASE}",
             f"{_TINY} --steps 2 --warm 1 --batch 6"),
        Item("run", 170, f"tests/gpu/text.py run --corpus {{corpus}} {_BASE}",
             f"{_TINY} --steps 4 --eval_steps 2 --save_steps 2 --batch 6"),
        Item("encode", 80, f"tests/gpu/text.py encode --corpus {{corpus}} {_BASE}",
             f"{_TINY} --sentences 24 --sizes 4 8"),
    ),
    3: (
        Item("pretraining", 130, "tests/benchmarks/pretraining_speed.py --batch 128 --steps 80 --repeats 3",
             "--architecture resnet10_narrow --batch 6 --steps 2 --repeats 1"),
        Item("loss", 250, "tests/benchmarks/loss_core.py --one_process --tf32 both --repeats 3",
             "--sizes 8 --dim 8 --repeats 1"),
        Item("classifiers", 120, "tests/benchmarks/transfer_speed.py --share 400 --repeats 1",
             "--tasks TREC --share 39 --dim 4"),
        Item("transfer", 90, "tests/gpu/transfer.py", "--mode fast --tasks MiniQuestions"),
    ),
}  # fmt: skip


def environment(wheels: Path, work: Path, small: bool) -> tuple[dict[str, str], list[str]]:
    """The items' environment, and the names of the wheels in use.

    A wheel is unpacked where this Python has no distribution of its name; one that is there stays as it is.
    """
    site, used = work / "site", []
    for wheel in sorted(wheels.glob("*.whl")):
        if not any(importlib.metadata.distributions(name=wheel.name.split("-")[0])):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
            used.append(wheel.name)
    paths = [str(ROOT), str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {
        "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1",
        "DYSTRESS_CACHE": str(work / "cache"),
    }  # fmt: skip
    if small:  # two items at a time, each on one core
        given |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}  # of a test that calls
    return own | given, used


def output_of(code: str, env: dict[str, str]) -> str:
    """The last line that some Python prints.

    Raises:
        SystemExit: it fails; the message is its last line.
    """
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"kit.py: this machine cannot run the kit: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip().splitlines()[-1]


def write_sentences(file: Path) -> Path:
    """The sentences of the embedded STS set, for a dry run."""
    lines = [line.split("\t") for line in MINI_STS.read_text(encoding="utf-8").splitlines()]
    file.write_text("\n".join(dict.fromkeys(text for line in lines for text in line[5:7])) + "\n", encoding="utf-8")
    return file


def run_item(command: list[str], limit: float, env: dict[str, str]) -> dict[str, Any]:
    """Run a program to its end or its limit; what it left is killed."""
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        process_group=0,
    )  # fmt: skip
    status = "out of time"
    try:
        said, _ = process.communicate(timeout=limit)
        status = "measured" if process.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    lines = said.splitlines()
    result = result_in(lines)
    if status == "measured" and result is None:
        status = "failed"
    if result is not None:
        lines = lines[:-1]
    seconds = round(time.monotonic() - start, 1)
    return {"status": status, "seconds": seconds, "result": result, "last_lines": lines[-LAST_LINES:]}


def result_in(lines: list[str]) -> Any:
    """What the last line holds, if it is JSON; else None."""
    try:
        return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    except ValueError:
        return None


def write_whole(file: Path, record: dict[str, Any]) -> None:
    """Write a file that is whole or not there."""
    unfinished = file.with_name(f".{file.name}.writing")
    unfinished.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, file)


def main() -> int:
    """Run the items; 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=int, choices=sorted(PARTS))
    parser.add_argument("--output", type=Path, help="folder of the results; a dry run keeps none by default")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="folder of wheels (default wheels)")
    parser.add_argument("--corpus", type=Path, help="sentences, one a line (default: Python's documentation)")
    parser.add_argument("--items", nargs="+", help="these alone")
    parser.add_argument("--dry_run", action="store_true", help="small, on the CPU, all parts unless one is given")
    options = parser.parse_args()
    if not options.dry_run and (options.part is None or options.output is None):
        parser.error("--part and --output are needed, or --dry_run")
    known = [item.name for items in PARTS.values() for item in items]
    if unknown := set(options.items or ()) - set(known):
        parser.error(f"--items: unknown {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="kit-") as folder:
        return run_parts(options, Path(folder))


def run_parts(options: argparse.Namespace, work: Path) -> int:
    """Run the parts that are asked for."""
    small, output = options.dry_run, (options.output or work / "results").absolute()
    output.mkdir(parents=True, exist_ok=True)
    env, used = environment(options.wheels.absolute(), work, small)
    machine = json.loads(output_of(MACHINE, env)) | {"wheels": used}
    print(json.dumps(machine), flush=True)
    if not small and machine["device"] == "cpu":
        raise SystemExit("kit.py: torch sees no GPU here; --dry_run runs on the CPU")
    corpus = options.corpus and options.corpus.absolute()
    if corpus is None:
        corpus = write_sentences(work / "sentences.txt") if small else Path(output_of(CORPUS, env))

    def run(numbered: tuple[int, Item]) -> bool:
        part, item = numbered
        words = shlex.split(item.command.format(corpus=corpus)) + (shlex.split(item.small) if small else [])
        limit = DRY_SECONDS if small else item.limit
        record = run_item([sys.executable, *words], limit, env)
        about = {"part": part, "item": item.name, "dry_run": small, "command": ["python", *words]}
        write_whole(output / f"part{part}-{item.name}.json", about | record | {"limit": limit, "machine": machine})
        shown = record["last_lines"] if record["status"] != "measured" or not small else []
        print("\n".join([*shown, f"{item.name}: {record['status']}, {record['seconds']} s"]), flush=True)
        return bool(record["status"] == "measured")

    chosen = [
        (part, item)
        for part in ([options.part] if options.part else PARTS)
        for item in PARTS[part]
        if not options.items or item.name in options.items
    ]
    with ThreadPoolExecutor(2 if small else 1) as pool:
        return 0 if all(list(pool.map(run, chosen))) else 1


if __name__ == "__main__":
    sys.exit(main())
