"""A run that is killed with SIGKILL after its first checkpoint and resumed ends as one that was left alone, bit by bit.

python tests/gpu/killed.py text --corpus sentences.txt
python tests/gpu/killed.py images
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from programs import IMAGES, ROOT, TEXT, call, report

from dystress_text import train as text
from dystress_text.training.run_folder import checkpoint_folders, read_record, read_steps
from vision import train as images

PATIENCE = 120  # seconds until the first checkpoint
TIMINGS = ("samples_per_second",)


def outcome(out: Path) -> dict[str, Any]:
    """The weights' checksums, the log without timings, and what the record says of the end."""
    weights = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(out.glob("*.safetensors"))}
    log = [{k: v for k, v in line.items() if k not in TIMINGS} for line in read_steps(out / "metrics.jsonl")]
    record = read_record(out)
    return {"weights": weights, "log": log, "end": [record.get(name) for name in ("best_step", "steps", "trained")]}


def kill_after_a_checkpoint(command: list[str], out: Path) -> int:
    """Start the run, kill it once its first checkpoint is there, and return the number of checkpoints left."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while not checkpoint_folders(out):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SystemExit(f"no checkpoint to kill at; the run's exit code is {process.wait()}")
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        raise SystemExit("the run ended before it was killed; raise --steps")
    return len(checkpoint_folders(out))


def main() -> int:
    """Run, kill, resume and compare; 1 if the ends differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["text", "images"])
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save_steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    main_of = {"text": text.main, "images": images.main}
    program, words = "vision/train.py", IMAGES
    if options.kind == "text":
        program, words = "dystress_text/train.py", [*TEXT, "--train_file", str(options.corpus)]
    words = [*words, "--max_steps", str(options.steps), "--save_steps", str(options.save_steps)]
    words += [
        "--train_batch_size",
        str(options.batch),
        "--logging_steps",
        str(options.save_steps // 2),
        "--deterministic",
    ]
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        command = [sys.executable, program, *words, "--output_dir"]
        if error := call(main_of[options.kind], [*words, "--output_dir", str(whole)]):
            raise SystemExit(error)
        left = kill_after_a_checkpoint([*command, str(killed)], killed)
        subprocess.run([*command, str(killed), "--resume_from_checkpoint"], cwd=ROOT, check=True)
        expected, found = outcome(whole), outcome(killed)
    differing = [name for name in expected if expected[name] != found[name]]
    logs = [expected["log"], found["log"]] if differing else []
    ends = [expected["end"], found["end"]]
    report({"checkpoints_left": left, "equal": not differing, "differing": differing, "ends": ends, "logs": logs})
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
