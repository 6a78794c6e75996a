"""Check that a device computes what was requested, through the training programs.

The last line of output is JSON; "passed" says whether the check holds.

    python tests/gpu/checks.py --corpus sentences.txt \\
        environment | dropout | equal | objectives KIND | killed KIND

``--preset paper`` is the best row of the text table. Its pooler is ``cls``, so the last layer
computes one query for each text.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.state import AcceleratorState, GradientState
from safetensors.torch import load_file

from dystress_text.training.accelerator import set_kernels

ROOT = Path(__file__).resolve().parents[2]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MODEL = str(ROOT / "dystress_text" / "embedded" / "bert-mini-wiki")
PAPER = "--preset=paper"
# the file, and the module, which is imported late: an environment may lack what images need
PROGRAMS = {
    "text": ("dystress_text/train.py", "dystress_text.programs.train"),
    "images": ("vision/train.py", "vision.train"),
}
PACKAGES = """
torch transformers accelerate sentence-transformers tokenizers datasets dill multiprocess bm25s
kornia kornia_rs pytorch_optimizer numpy
"""
VARIANTS = {
    "text": {
        "infonce": "",
        "ntxent": "--loss=ntxent(0.05)",
        "dcl": "--loss=dcl(0.05)",
        "dclw": "--loss=dclw(0.05)",
        "macl": "--loss=macl(alignment_adaptive(0.05,2,0.8))",
        "bidirectional": "--loss=infonce(0.05,bidirectional=True)",
        "mlm": "--do_mlm=yes",
        "learned": "--loss=infonce(learned(0.05))",
        "cache": "--grad_cache_chunk=16",
        "paper": PAPER,
    },
    "images": {
        "ntxent": "--loss=ntxent(0.1)",
        "infonce": "--loss=infonce(0.1)",
        "dcl": "--loss=dcl(0.1)",
        "dclw": "--loss=dclw(0.1)",
        "queue": "--loss=queue(0.1)",
        "macl": "--loss=macl(alignment_adaptive(0.1,0.5,0),both_views=True)",
        "barlow_twins": "--loss=barlow_twins()",
        "vicreg": "--loss=vicreg()",
        "w_mse": "--loss=w_mse()",
        "zero_cl": "--loss=zero_cl()",
        "arb": "--loss=arb()",
        "byol": "--loss=byol()",
        "dino": "--loss=dino()",
    },
}


def arguments_of(options: argparse.Namespace, kind: str) -> list[str]:
    """Return the options of a short run, without its folder."""
    steps = [
        f"--max_steps={options.steps}",
        f"--train_batch_size={options.batch}",
        "--eval_steps=0",
    ]
    if options.precision is not None:
        steps.append(f"--mixed_precision={options.precision}")
    if kind == "images":
        return ["--preset=quickstart", "--knn_k=0", "--logging_steps=1", *steps]
    own = [f"--model_name_or_path={MODEL}", "--eval_set=none", f"--train_file={options.corpus}"]
    preset = PAPER if options.preset == "paper" else "--preset=small"
    return [preset, "--logging_steps=1", *own, *steps]


def call(kind: str, arguments: Sequence[str]) -> None:
    """Run a training program in this process."""
    # accelerate keeps its state for the life of a process
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    code = importlib.import_module(PROGRAMS[kind][1]).main(list(arguments))
    if code:
        raise RuntimeError(f"exit code {code}")


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log without timings."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{key: value for key, value in line.items() if "second" not in key} for line in lines]


def losses_of(folder: Path) -> list[float]:
    return [line["loss"] for line in log_of(folder) if "loss" in line]


def environment(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the device and the versions of the packages; None for one that is missing."""
    found: dict[str, Any] = {"device": DEVICE.type, "cores": os.cpu_count()}
    if DEVICE.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        found |= {"gpu": torch.cuda.get_device_name(), "free_gb": free / 1e9, "of_gb": total / 1e9}
    for name in PACKAGES.split():
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {**found, "passed": None not in found.values()}


def dropout(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare the share of attention weights that kernels drop with the dropout rate.

    All queries and keys are zero, so every weight is 1 / tokens; the values are unit vectors, so
    each weight is an entry of the output. cuDNN rounded rates to multiples of 1/16
    (pytorch#174245).
    """
    set_kernels(deterministic=False)
    shape = (options.batch, 12, 32, 64)  # (batch, heads, length, size)
    length, size = shape[2:]
    zeros = torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
    unit_vectors = torch.eye(length, size, dtype=torch.bfloat16, device=DEVICE)
    values = unit_vectors.expand(shape).contiguous()
    found = []
    passed = True
    for rate, tokens in product((0.05, 0.1, 0.15, 0.25), (length, 23)):
        mask = None
        if tokens < length:
            mask = torch.arange(length, device=DEVICE) < tokens
            mask = mask.expand(options.batch, 1, 1, length)
        out = F.scaled_dot_product_attention(zeros, zeros, values, mask, rate)
        weights = out[..., :tokens].float()
        dropped = float((weights == 0).float().mean())
        deviation = math.sqrt(rate * (1 - rate) / weights.numel())
        passed &= abs(dropped - rate) < 1 / 256 + 5 * deviation
        found.append({"rate": rate, "tokens": tokens, "dropped": round(dropped, 5)})
    return {"rates": found, "passed": passed}


def equal(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare steps in fp32 without dropout on the device with those on the CPU.

    Rounding errors grow from step to step, since Adam divides by small second moments.
    """
    lines = options.corpus.read_text(encoding="utf-8").replace('"', "").splitlines()
    pairs = [f'"{a}","{b}"' for a, b in zip(lines[::2], lines[1::2], strict=False)]
    (folder / "pairs.csv").write_text("\n".join(["sent0,sent1", *pairs]) + "\n", encoding="utf-8")
    arguments = [
        *arguments_of(options, "text"),
        "--supervised",
        f"--train_file={folder / 'pairs.csv'}",
        "--dropout=0",
        "--mixed_precision=no",
        "--output_dir",
    ]
    # a process that sees no GPU
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, PROGRAMS["text"][0], *arguments, str(folder / "cpu")]
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    call("text", [*arguments, str(folder / "device")])
    expected = losses_of(folder / "cpu")
    losses = losses_of(folder / "device")
    errors = [abs(a / b - 1) for a, b in zip(losses, expected, strict=True)]
    cpu = load_file(folder / "cpu" / "model.safetensors")
    device = load_file(folder / "device" / "model.safetensors")
    differences = [float((device[name].double() - cpu[name].double()).abs().max()) for name in cpu]
    return {
        "cpu": expected,
        "device": losses,
        "first_errors": max(errors[:3]),
        "largest_error": max(errors),
        "largest_weight_difference": max(differences),
        "passed": max(errors[:3]) < 1e-4 and max(errors) < 1e-2,
    }


def objectives(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train some steps with every objective in each precision; all losses must be finite.

    A line is printed after each training, since an error of the device may end the process.
    """
    failed: list[str] = []
    count = 0
    precisions = ["no", "bf16"]
    if DEVICE.type == "cuda":
        precisions.append("fp16")
    for name, precision in product(options.only or VARIANTS[options.kind], precisions):
        out = folder / name / precision
        arguments = arguments_of(options, options.kind)
        arguments += VARIANTS[options.kind][name].split()
        arguments += [f"--mixed_precision={precision}", f"--output_dir={out}"]
        line: dict[str, Any] = {"training": f"{name}, {precision}"}
        try:
            call(options.kind, arguments)
            line["losses"] = losses = losses_of(out)
            if not losses or any(loss is None or not math.isfinite(loss) for loss in losses):
                failed.append(line["training"])
        except Exception as error:  # the other trainings go on
            line["error"] = f"{type(error).__name__}: {error}"
            failed.append(line["training"])
        count += 1
        print(json.dumps(line), flush=True)
    return {"trainings": count, "failed": failed, "passed": not failed}


def scaler_of(folder: Path) -> dict[str, float] | None:
    """Return the state of the gradient scaler in a run's last checkpoint; None without fp16."""
    steps = [int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*")]
    file = folder / f"checkpoint-{max(steps)}" / "scaler.pt"
    return torch.load(file, weights_only=True) if file.exists() else None


def killed(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare a run that was killed after its first checkpoint and resumed with a whole one.

    Weights, log and, in fp16, the state of the gradient scaler must be equal bit by bit.
    """
    whole = folder / "whole"
    resumed = folder / "resumed"
    arguments = [
        *arguments_of(options, options.kind),
        f"--save_steps={options.steps // 4}",
        "--keep_checkpoints",
        "--deterministic",
        "--output_dir",
    ]
    call(options.kind, [*arguments, str(whole)])
    command = [sys.executable, PROGRAMS[options.kind][0], *arguments, str(resumed)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None and not list(resumed.glob("checkpoint-*")):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    code = process.wait()
    subprocess.run([*command, "--resume_from_checkpoint=auto"], cwd=ROOT, check=True)
    weights = [(out / "model.safetensors").read_bytes() for out in (whole, resumed)]
    scalers = [scaler_of(out) for out in (whole, resumed)]
    device = json.loads((resumed / "run.json").read_text(encoding="utf-8"))["device"]
    has_scaler = device.endswith("fp16")
    equal = {
        "killed": code == -signal.SIGKILL,
        "weights": weights[0] == weights[1],
        "log": log_of(whole) == log_of(resumed),
        "scaler": scalers[0] == scalers[1] and (scalers[0] is not None) == has_scaler,
    }
    return {**equal, "device": device, "scale": scalers[1], "passed": all(equal.values())}


def main() -> int:
    """Run one check; return 1 if it does not hold."""
    checks = {each.__name__: each for each in (environment, dropout, equal, objectives, killed)}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("check", choices=list(checks))
    parser.add_argument("kind", nargs="?", choices=list(PROGRAMS), default="text")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--preset", choices=["small", "paper"], default="small")
    parser.add_argument("--precision", choices=["no", "bf16", "fp16"])
    options = parser.parse_args()
    if options.precision == "fp16" and DEVICE.type == "cpu":
        print("accelerate has no fp16 on a CPU: bf16 in its place", flush=True)
        options.precision = "bf16"
    with tempfile.TemporaryDirectory() as folder:
        result = checks[options.check](options, Path(folder))
    print(json.dumps(result), flush=True)
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
