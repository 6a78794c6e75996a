"""Do the presets train as they did? Five steps with each, by this checkout and by a revision of the
history.

    python tests/benchmarks/preset_losses.py 09c32fa

The presets are those of the old revision. Encoder, data and batch are small in both, so that a CPU
does it in minutes; the loss, the optimiser and its schedule are the preset's. The losses must be
equal to the last digit.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TEXT = {
    "model_name_or_path": "bert-mini-wiki", "eval_set": "mini_sts", "train_batch_size": 32,
    "max_seq_length": 32, "mixed_precision": "no", "max_train_samples": 2000,
}  # fmt: skip  # without a set crops would hold texts out
IMAGES = {
    "dataset": "shapes", "architecture": "resnet10_narrow", "stem": "imagenet", "image_size": 24, "out_dim": 32,
    "knn_k": 0, "train_batch_size": 64, "eval_steps": 0, "mixed_precision": "no", "max_train_samples": 512,
}  # fmt: skip
PROGRAMS = {  # the program (dystress_text/train.py before 0.2), where its presets are, what every run is given
    "text": ("dystress_text.programs.train", "dystress_text.config.presets", TEXT),
    "images": ("vision.train", "vision.pretraining.presets", IMAGES),
}


def presets(root: Path) -> dict[str, list[str]]:
    """The command line of each preset of a checkout, by program and name."""
    code = "import json; from {} import PRESETS; print(json.dumps({{n: p.settings for n, p in PRESETS.items()}}))"
    lines = {}
    for kind, (_, module, options) in PROGRAMS.items():
        for name, settings in json.loads(_python(root, ["-c", code.format(module)])).items():
            data = [
                "--train_file=triplets.csv"
                if "supervised" in settings
                else "--train_file=python-documentation"
            ]
            more = (
                data if kind == "text" else ["--small_crop_size=16"] * ("small_crops" in settings)
            )
            lines[f"{kind} {name}"] = [
                f"--preset={name}",
                *(f"--{option}={value}" for option, value in options.items()),
                *more,
            ]
    return lines


def train(lines: dict[str, list[str]]) -> None:
    """Print the losses of each command line, run in this process, as a line of JSON."""
    rows = "".join(f"a cat sleeps {i},the cat is asleep {i},a dog runs {i}\n" for i in range(200))
    Path("triplets.csv").write_text(f"sent0,sent1,hard_neg\n{rows}", encoding="utf-8")
    for name, argv in lines.items():
        module = PROGRAMS[name.split()[0]][0]
        found = importlib.util.find_spec("dystress_text.programs")
        program = importlib.import_module(module if found else module.replace(".programs", ""))
        folder = tempfile.mkdtemp(dir=".")
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = program.main(
                [*argv, "--max_steps=5", "--logging_steps=1", f"--output_dir={folder}"]
            )
        log = Path(folder) / "metrics.jsonl"
        losses = (
            [line.get("loss") for line in map(json.loads, log.read_text().splitlines())]
            if log.is_file()
            else []
        )
        losses = [loss for loss in losses if loss is not None]
        print(json.dumps([name, losses if code == 0 else said.getvalue()[-300:]]), flush=True)


def _python(root: Path, argv: list[str], **more: Any) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *argv]
    return str(
        subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True, **more
        ).stdout
    )


def losses_of(root: Path, lines: dict[str, list[str]]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        told = _python(
            root, [str(Path(__file__).resolve()), "--train"], cwd=folder, input=json.dumps(lines)
        )
    return dict(map(json.loads, told.splitlines()))


def main(revision: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True
        ).stdout
        subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
        lines = presets(Path(folder))
        before = losses_of(Path(folder), lines)
    after = losses_of(ROOT, lines)
    different = [name for name in lines if before[name] != after.get(name)]
    for name in different:
        print(f"{name}:\n  before {before[name]}\n  after  {after.get(name)}")
    trained = sum(isinstance(each, list) and len(each) == 5 for each in before.values())
    print(
        f"{trained} of {len(lines)} presets trained five steps before; {len(different)} differ now"
    )
    return bool(different) or trained < len(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["--train"]:
        train(json.load(sys.stdin))
    else:
        sys.exit(main(sys.argv[1]))
