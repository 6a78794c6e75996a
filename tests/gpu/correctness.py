"""Whether the device computes what was asked: the dropout rate of each attention kernel, and the CPU's steps in fp32.

python tests/gpu/correctness.py dropout
python tests/gpu/correctness.py equal --corpus sentences.txt
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from programs import ROOT, TEXT, call, here, losses_of, report, write_rows
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dystress_text import train
from dystress_text.training.accelerator import set_kernels

CHOSEN, TRAINING = "torch's choice", "in training"  # torch's own settings, and those of the accelerator
KERNELS = {
    "math": [SDPBackend.MATH],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "flash": [SDPBackend.FLASH_ATTENTION],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
}
RATES = (0.05, 0.1, 0.15, 0.25, 0.3)  # one is a multiple of 1/16: cuDNN rounded the others (pytorch#174245)
HEADS, LENGTH, SIZE, TOKENS = 12, 32, 64, 23  # of a row, TOKENS are no padding where there is a mask
SIGMAS, RESOLUTION = 5, 1 / 256  # flash attention compares bytes with the rate
LOSS_TOLERANCE = {"text": 1e-3, "images": 1e-2}  # relative; batch statistics enlarge the rounding of images


def dropped(rate: float, kernel: str, mask: Tensor | None, rows: int) -> dict[str, Any]:
    """The share of attention weights that a kernel drops, and what it multiplies the others by.

    All queries and keys are zero, so every weight is 1 / tokens; the values are unit vectors, so that each weight shows
    by itself in the output.
    """
    tokens = LENGTH if mask is None else TOKENS
    zeros = torch.zeros(rows, HEADS, LENGTH, SIZE, dtype=torch.bfloat16, device=here())
    values = torch.eye(LENGTH, SIZE, dtype=torch.bfloat16, device=here()).expand(rows, HEADS, LENGTH, SIZE).contiguous()
    try:
        with sdpa_kernel(KERNELS[kernel]) if kernel in KERNELS else nullcontext():
            out = F.scaled_dot_product_attention(zeros, zeros, values, mask, rate)
    except RuntimeError as error:
        return {"unavailable": str(error).splitlines()[0][:200]}
    weights = out[..., :tokens].float()
    measured, of = float((weights == 0).float().mean()), weights.numel()
    kept = float(weights[weights != 0].mean()) * tokens  # 1 / (1 - rate)
    allowed = RESOLUTION + SIGMAS * math.sqrt(rate * (1 - rate) / of)
    right = abs(measured - rate) <= allowed and abs(kept * (1 - rate) - 1) < 0.01
    return {"measured": round(measured, 5), "scale": round(kept, 4), "weights": of, "right": right}


def dropout(options: argparse.Namespace) -> int:
    """Measure all kernels; a wrong one is a finding, not a failure, unless training takes it: then 1."""
    torch.manual_seed(0)
    padding = torch.arange(LENGTH, device=here()) < TOKENS
    mask = padding.expand(options.rows, 1, 1, LENGTH)
    found = []
    for kernel in (*KERNELS, CHOSEN, TRAINING):
        if kernel == TRAINING:
            set_kernels(deterministic=False)
        for used, rate in itertools.product((None, mask), RATES):
            row = {"kernel": kernel, "mask": used is not None, "asked": rate}
            found.append(row | dropped(rate, kernel, used, options.rows))
            print(found[-1])
    wrong = sorted({str(row["kernel"]) for row in found if not row.get("right", "unavailable" in row)})
    report({"rates": found, "wrong": wrong})
    return 1 if TRAINING in wrong else 0


def text_steps(options: argparse.Namespace, folder: Path, on_cpu: bool) -> tuple[list[Any], dict[str, Tensor]]:
    """The losses and the weights of a run without dropout, by the program; the CPU's in a process that sees no GPU.

    Raises:
        SystemExit: the program fails.
    """
    out = folder / ("cpu" if on_cpu else "device")
    rows = write_rows(options.corpus, folder / "rows.csv", 2, 4 * options.batch)
    words = [*TEXT, *rows, "--dropout", "0", "--mixed_precision", "no", "--logging_steps", "1",
             "--output_dir", str(out), "--max_steps", str(options.steps),
             "--train_batch_size", str(options.batch)]  # fmt: skip
    if on_cpu:
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
        subprocess.run([sys.executable, "dystress_text/train.py", *words], cwd=ROOT, env=env, check=True)
    elif error := call(train.main, words):
        raise SystemExit(error)
    return losses_of(out), load_file(out / "model.safetensors")


def image_steps(options: argparse.Namespace, device: torch.device) -> tuple[list[Any], dict[str, Tensor]]:
    """The losses and the weights of a bare loop over the same views, which the CPU has drawn."""
    from dystress_text.core import CosineTemperature, NTXentLoss
    from vision.resnet import build_encoder

    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    encoder, loss = build_encoder("resnet10_narrow").to(device).train(), NTXentLoss(CosineTemperature(0.07, 0.2))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(options.steps):
        first = torch.randn(options.batch, 3, 32, 32)
        views = torch.cat([first, first + 0.3 * torch.randn(first.shape)]).to(device)
        value = loss(*encoder(views).chunk(2))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(value.detach()))
    return losses, {name: tensor.cpu() for name, tensor in encoder.state_dict().items()}


def equal(options: argparse.Namespace) -> int:
    """Compare; 1 if a loss is off by more than its tolerance."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = {"text": [text_steps(options, Path(folder), on_cpu) for on_cpu in (True, False)]}
    pairs["images"] = [image_steps(options, device) for device in (torch.device("cpu"), here())]
    found = {}
    for name, ((expected, cpu), (losses, device)) in pairs.items():
        off = max(abs(a / b - 1) for a, b in zip(losses, expected, strict=True))
        apart = max(float((device[k].double() - cpu[k].double()).abs().max()) for k in cpu)
        found[name] = {
            "cpu": expected, "device": losses, "loss_off": off, "weights_apart": apart,
            "right": len(losses) == options.steps and off <= LOSS_TOLERANCE[name],
        }  # fmt: skip
        print(f"{name}: losses off by {off:.2e} relative at most, weights {apart:.2e} apart at most", flush=True)
    report(found)
    return 0 if all(row["right"] for row in found.values()) else 1


def main() -> int:
    """Measure one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["dropout", "equal"])
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    return dropout(options) if options.what == "dropout" else equal(options)


if __name__ == "__main__":
    sys.exit(main())
