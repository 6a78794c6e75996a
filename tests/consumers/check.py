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

from dystress_text.encoders.encoder import SentenceEncoder, load_encoder
from dystress_text.encoders.pooling import POOLERS
from dystress_text.export.copies import PROBES, export
from dystress_text.files.places import embedded

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
    "5.4.0": ("transformers>=5,<6",),
    version("sentence-transformers"): (f"transformers=={version('transformers')}",),
}
# What a release cannot do whatever the layout: ModernBERT came with transformers 4.48; sentence-transformers 3 finds no
# layers where an encoder has no pooler of its own; transformers 4 lists ModernBERT's last layer before its last norm.
KNOWN = {
    ("2.2.2", "legacy"): frozenset({"modernbert-cls", "modernbert-avg_first_last"}),
    ("2.2.2", "hf"): frozenset({"modernbert-cls", "modernbert-avg_first_last"}),
    ("2.7.0", "legacy"): frozenset({"modernbert-cls", "modernbert-avg_first_last"}),
    ("2.7.0", "hf"): frozenset({"modernbert-cls", "modernbert-avg_first_last"}),
    ("3.4.1", "legacy"): frozenset({"distilbert-avg_first_last", "modernbert-avg_first_last"}),
    ("4.1.0", "legacy"): frozenset({"modernbert-avg_first_last"}),
    ("5.3.0", "legacy"): frozenset({"modernbert-avg_first_last"}),
}
ONNX = ("bert-mini-wiki-cls", "bert-mini-wiki-avg_top2", "modernbert-avg_first_last")
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
    for family in ("roberta", "distilbert", "mpnet", "modernbert"):
        for name in ("cls", "avg_first_last"):
            encoders[f"{family}-{name}"] = SentenceEncoder(build_transformer(family), name, False), build_tokenizer()
    expected = {}
    for name, (encoder, tokenizer) in encoders.items():
        native = folder / "native" / name
        native.mkdir(parents=True)
        encoder.save(native, tokenizer)
        vectors = encoder.encode(PROBES, tokenizer)
        assert isinstance(vectors, torch.Tensor)
        expected[name] = vectors.numpy()
        for layout in ("hf", "legacy"):
            export(native, layout, folder / layout / name)
        if name in ONNX:  # the exporter takes its time
            export(native, "onnx", folder / "onnx" / name)
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


def ask(
    python: Path, consumer: str, models: Path, expected: dict[str, np.ndarray[Any, Any]]
) -> tuple[str, frozenset[str]]:
    """What a consumer makes of a layout, in words, and the models whose vectors it does not give."""
    names = [name for name in expected if (models / name).is_dir()]
    command = [str(python), str(HERE / "consumer.py"), consumer, *(str(models / name) for name in names)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(command, input=json.dumps(PROBES), capture_output=True, text=True, env=environment)
    if done.returncode:
        return f"does not run: {done.stderr.splitlines()[-1]}", frozenset(names)
    answer = json.loads(done.stdout.splitlines()[-1])
    errors = {Path(folder).name: error for folder, error in answer["errors"].items()}
    if len(errors) == len(names):
        return f"no: `{next(iter(errors.values()))}`", frozenset(names)
    differences = {
        Path(folder).name: float(np.abs(np.array(vectors) - expected[Path(folder).name]).max())
        for folder, vectors in answer["vectors"].items()
    }
    good = [difference for difference in differences.values() if difference <= TOLERANCE]
    bad = errors | {name: f"{value:.1e}" for name, value in differences.items() if not value <= TOLERANCE}
    exceptions = "".join(f"; {name}: `{what}`" for name, what in bad.items())
    return f"{len(good)} of {len(names)} within {max(good, default=float('nan')):.1e}{exceptions}", frozenset(bad)


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
        native, native_bad = ask(python, "sentence-transformers", models / "native", expected)
        legacy, legacy_bad = ask(python, "sentence-transformers", models / "legacy", expected)
        card, card_bad = ask(python, "card", models / "hf", expected)
        reads_native = tuple(map(int, release.split(".")[:2])) >= FIRST_NATIVE
        good &= legacy_bad <= KNOWN.get((release, "legacy"), frozenset())
        good &= card_bad <= KNOWN.get((release, "hf"), frozenset())
        good &= not native_bad if reads_native else len(native_bad) == len(expected)
        versions = versions_in(python, "sentence-transformers", "transformers")
        print(f"| {' | '.join([*versions, native, legacy, card])} |", flush=True)
    words, onnx_bad = ask(Path(sys.executable), "card", models / "onnx", expected)
    print(f"\nONNX Runtime {version('onnxruntime')}, card of `--to onnx`: {words}", flush=True)
    python = make_environment(folder / "mteb", MTEB)
    native = str(models / "native" / "bert-mini-wiki-avg")
    command = [str(python), str(HERE / "mteb_task.py"), native]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    print(f"MTEB {versions_in(python, 'mteb')[0]}: {(done.stdout or done.stderr).splitlines()[-1]}")
    return 0 if good and not onnx_bad and done.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
