"""Train five steps with each preset by this checkout and by a revision of the history.

    python tests/benchmarks/preset_losses.py 846cb922
    python tests/benchmarks/preset_losses.py 846cb922 text   # or images

The presets are those of the old revision. Encoder, data and batch are small in both, so that a CPU
does it in minutes; the loss, the optimiser and its schedule are the preset's. The losses must be
equal to the last digit.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TEXT = """
--model_name_or_path=bert-mini-wiki --eval_set=mini_sts --train_batch_size=32 --max_seq_length=32
--mixed_precision=no --max_train_samples=2000
"""
IMAGES = """
--dataset=shapes --architecture=resnet10_narrow --stem=imagenet --image_size=24 --out_dim=32
--knn_k=0 --train_batch_size=64 --eval_steps=0 --mixed_precision=no --max_train_samples=512
"""
# the program, its presets, and the options of every run
PROGRAMS = {
    "text": ("dystress_text.programs.train", "dystress_text.finetuning.presets", TEXT),
    "images": ("vision.train", "vision.pretraining.presets", IMAGES),
}
EARLIER = "dystress_text.config.presets"  # of text, until 846cb922
LIST = """
import json
from {} import PRESETS
print(json.dumps({{name: preset.settings for name, preset in PRESETS.items()}}))
"""


def presets(root: Path, kinds: list[str]) -> dict[str, list[str]]:
    """Return the command line of each preset of a checkout, by program and name."""
    lines = {}
    for kind in kinds:
        _, module, options = PROGRAMS[kind]
        if kind == "text" and (root / "dystress_text" / "config").is_dir():
            module = EARLIER
        # the working directory comes before PYTHONPATH
        listing = _python(root, ["-c", LIST.format(module)], cwd=root)
        for name, settings in json.loads(listing).items():
            line = [f"--preset={name}", *options.split()]
            if kind == "text":
                supervised = "supervised" in settings
                file = "triplets.csv" if supervised else "python-documentation"
                line.append(f"--train_file={file}")
            elif "small_crops" in settings:
                line.append("--small_crop_size=16")
            lines[f"{kind} {name}"] = line
    return lines


def train(lines: dict[str, list[str]]) -> None:
    """Print the losses of each command line, run in this process, as a line of JSON."""
    rows = "".join(f"a cat sleeps {i},the cat is asleep {i},a dog runs {i}\n" for i in range(200))
    Path("triplets.csv").write_text(f"sent0,sent1,hard_neg\n{rows}", encoding="utf-8")
    for name, argv in lines.items():
        program = importlib.import_module(PROGRAMS[name.split()[0]][0])
        folder = tempfile.mkdtemp(dir=".")
        said = io.StringIO()
        more = ["--max_steps=5", "--logging_steps=1", f"--output_dir={folder}"]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = program.main([*argv, *more])
        if code != 0:
            print(json.dumps([name, said.getvalue()[-300:]]), flush=True)
            continue
        log = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8")
        logged = [json.loads(line).get("loss") for line in log.splitlines()]
        print(json.dumps([name, [loss for loss in logged if loss is not None]]), flush=True)


def _python(root: Path, argv: list[str], **more: Any) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *argv]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, **more
    )
    return str(done.stdout)


def losses_of(root: Path, lines: dict[str, list[str]]) -> dict[str, object]:
    command = [str(Path(__file__).resolve()), "--train"]
    with tempfile.TemporaryDirectory() as folder:
        output = _python(root, command, cwd=folder, input=json.dumps(lines))
    return dict(map(json.loads, output.splitlines()))


def main(revision: str, *kinds: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True
        ).stdout
        subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
        lines = presets(Path(folder), list(kinds or PROGRAMS))
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
        sys.exit(main(*sys.argv[1:]))
