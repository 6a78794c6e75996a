"""Whether a saved model gives the same vectors in every tool that shall read it, old releases included.

    python tests/consumers/check.py --folder /tmp/consumers

Makes one environment for each release in the folder (they stay for the next time), saves models of all poolers and of
five families, exports them, has each release compute the vectors of the same sentences, and prints a table with the
largest differences to this package's own encoder. Needs a package index and some gigabytes; ends with 1 if a difference
is above 1e-5, or if a release cannot read what it shall.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dystress_text.encoder import POOLERS, SentenceEncoder, load_encoder
from dystress_text.export import PROBES, export
from dystress_text.locate import embedded

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import build_tokenizer, build_transformer

HERE = Path(__file__).resolve().parent
TOLERANCE = 1e-5
FIRST_NATIVE = (5, 4)  # the first release whose modules are where the current one looks for them

# sentence-transformers' release, and what else it needs on a Python of today
RELEASES = {
    "2.2.2": ("transformers<4.42", "huggingface_hub<0.26", "numpy<2"),
    "2.7.0": ("transformers<4.42", "numpy<2"),
    "3.4.1": ("transformers<4.50",),
    "4.1.0": ("transformers<5",),
    "5.3.0": ("transformers<5",),
    "5.4.0": ("transformers<5",),
    version("sentence-transformers"): (f"transformers=={version('transformers')}",),
}
MTEB = (
    "mteb",
    f"sentence-transformers=={version('sentence-transformers')}",
    f"transformers=={version('transformers')}",
)


def make_models(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Save models of all poolers and families and their copies; the vectors that all must give, by name."""
    torch.manual_seed(0)
    encoders = {
        f"bert-mini-wiki-{name}": load_encoder(str(embedded("bert-mini-wiki")), name, False) for name in POOLERS
    }
    for family, pooler in zip(("bert", "roberta", "distilbert", "mpnet", "modernbert"), POOLERS, strict=True):
        encoders[f"tiny-{family}-{pooler}"] = (
            SentenceEncoder(build_transformer(family), pooler, False),
            build_tokenizer(),
        )
    expected = {}
    for name, (encoder, tokenizer) in encoders.items():
        native = folder / "native" / name
        native.mkdir(parents=True)
        encoder.save(native, tokenizer)
        vectors = encoder.encode(PROBES, tokenizer)
        assert isinstance(vectors, torch.Tensor)
        expected[name] = vectors.numpy()
        for layout in ("hf", "legacy", "onnx"):
            export(native, layout, folder / layout / name)
    return expected


def make_environment(folder: Path, packages: tuple[str, ...]) -> Path:
    """A virtual environment with this environment's torch and some packages; returns its Python."""
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        torch_alone = f"torch=={version('torch').split('+')[0]}"
        (folder / "constraints.txt").write_text(torch_alone + "\n")
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, torch_alone], check=True)  # first, so that an index with a CPU build can decide
        subprocess.run([*install, "-c", str(folder / "constraints.txt"), *packages], check=True)
        (folder / "complete").touch()
    return python


def ask(python: Path, consumer: str, models: Path, expected: dict[str, np.ndarray[Any, Any]]) -> tuple[str, bool]:
    """What a consumer makes of a layout, in words, and whether that is what it shall."""
    command = [str(python), str(HERE / "consumer.py"), consumer, *(str(models / name) for name in expected)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(command, input=json.dumps(PROBES), capture_output=True, text=True, env=environment)
    if done.returncode:
        return f"does not run: {done.stderr.splitlines()[-1]}", False
    answer = json.loads(done.stdout.splitlines()[-1])
    found = {Path(folder).name: np.array(vectors) for folder, vectors in answer["vectors"].items()}
    errors = {Path(folder).name: error for folder, error in answer["errors"].items()}
    if not found:
        return f"no: `{next(iter(errors.values()))}`", False
    difference = max(float(np.abs(found[name] - expected[name]).max()) for name in found)
    words = f"{difference:.1e}" + "".join(f"; not {name}: `{error}`" for name, error in errors.items())
    # ModernBERT came with transformers 4.48
    return words, difference <= TOLERANCE and all("modernbert" in name for name in errors)


def versions_in(python: Path, *packages: str) -> list[str]:
    """The versions of packages in an environment."""
    code = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    return subprocess.run([str(python), "-c", code, *packages], capture_output=True, text=True).stdout.split()


def main() -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for environments and models")
    folder = parser.parse_args().folder.absolute()
    models = folder / f"models-{os.getpid()}"
    expected = make_models(models)
    good = True
    print("| sentence-transformers | transformers | native `out/` | `--to legacy` | card of `--to hf` |")
    print("|---|---|---|---|---|", flush=True)
    for release, more in RELEASES.items():
        python = make_environment(folder / f"st-{release}", (f"sentence-transformers=={release}", *more))
        native, native_good = ask(python, "sentence-transformers", models / "native", expected)
        legacy, legacy_good = ask(python, "sentence-transformers", models / "legacy", expected)
        card, card_good = ask(python, "card", models / "hf", expected)
        shall = tuple(map(int, release.split(".")[:2])) >= FIRST_NATIVE
        good &= legacy_good and card_good and native_good == shall
        versions = versions_in(python, "sentence-transformers", "transformers")
        print(f"| {' | '.join([*versions, native, legacy, card])} |", flush=True)
    words, onnx_good = ask(Path(sys.executable), "card", models / "onnx", expected)
    print(f"\nONNX Runtime {version('onnxruntime')}, card of `--to onnx`: {words}")
    python = make_environment(folder / "mteb", MTEB)
    native = str(models / "native" / "bert-mini-wiki-avg")
    command = [str(python), str(HERE / "mteb_task.py"), native]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    print(f"MTEB {versions_in(python, 'mteb')[0]}: {(done.stdout or done.stderr).splitlines()[-1]}")
    return 0 if good and onnx_good and done.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
