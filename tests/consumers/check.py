"""Whether a saved model gives the same vectors in every tool that shall read it, older releases included.

    python tests/consumers/check.py --folder /tmp/consumers

Makes one environment for each release in the folder (they stay for the next time), saves models of all poolers and of
six families, has each release compute the vectors of the same sentences, and prints a table with the largest
differences to this package's own encoder. Needs a package index and some gigabytes; ends with 1 if a difference is
above 1e-5, or if a release cannot read what it shall.
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.loading import load_encoder
from dystress_text.encoders.pooling import POOLERS
from dystress_text.export.copies import PROBES, export
from dystress_text.files.places import EMBEDDED

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import build_tokenizer, build_transformer

HERE = Path(__file__).resolve().parent
# release, what else it gets, and what it cannot read: transformers 4 lists ModernBERT's last layer before its last norm
RELEASES = {
    "5.3.0": (("transformers<5",), {"modernbert-avg_first_last"}),
    version("sentence-transformers"): ((f"transformers=={version('transformers')}",), set()),
}


def make_models(folder):
    """Save models of all poolers and families and copies for transformers; the vectors that all must give, by name."""
    torch.manual_seed(0)
    encoders = {f"bert-{name}": load_encoder(str(EMBEDDED / "bert-mini-wiki"), name, False) for name in POOLERS}
    for family in ("roberta", "distilbert", "mpnet", "modernbert", "llama"):
        for name in ("last" if family == "llama" else "cls", "avg_first_last"):
            encoders[f"{family}-{name}"] = SentenceEncoder(build_transformer(family), name, False), build_tokenizer()
    head = SentenceEncoder(build_transformer("bert"), "cls", True, keep_head=True, normalize=True)
    encoders["bert-head"] = head, build_tokenizer()
    for name, (encoder, tokenizer) in encoders.items():
        encoder.save(folder / "native" / name, tokenizer)
        export(folder / "native" / name, "hf", folder / "hf" / name)
    return {name: encoder.encode(PROBES, tokenizer).numpy() for name, (encoder, tokenizer) in encoders.items()}


def make_environment(folder, packages):
    """A virtual environment with this environment's torch and some packages; returns its Python."""
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        torch_alone = f"torch=={version('torch').split('+')[0]}"
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, torch_alone], check=True)  # first, so that an index with a CPU build can decide
        subprocess.run([*install, torch_alone, *packages], check=True)
        (folder / "complete").touch()
    return python


def ask(python, consumer, models, expected):
    """What a consumer makes of a layout, in words, and the models whose vectors it does not give."""
    command = [str(python), str(HERE / "consumer.py"), consumer, *(str(models / name) for name in expected)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(command, input=json.dumps(PROBES), capture_output=True, text=True, env=environment)
    if done.returncode:
        return f"does not run: {done.stderr.splitlines()[-1]}", set(expected)
    found = json.loads(done.stdout.splitlines()[-1])
    differences = {
        name: float(np.abs(np.array(vectors) - expected[name]).max()) if isinstance(vectors, list) else vectors
        for name, vectors in found.items()
    }
    bad = {name: what for name, what in differences.items() if isinstance(what, str) or not what <= 1e-5}
    largest = max((what for name, what in differences.items() if name not in bad), default=float("nan"))
    said = "".join(f"; {name}: {what}" for name, what in bad.items())
    return f"{len(expected) - len(bad)} of {len(expected)} within {largest:.1e}{said}", set(bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for environments and models")
    folder = parser.parse_args().folder.absolute()
    models = folder / f"models-{os.getpid()}"
    expected, good = make_models(models), True
    print("| sentence-transformers | saved model | card of `--to hf` |\n|---|---|---|", flush=True)
    for release, (more, known) in RELEASES.items():
        python = make_environment(folder / f"st-{release}", (f"sentence-transformers=={release}", *more))
        native, bad = ask(python, "sentence-transformers", models / "native", expected)
        card, card_bad = ask(python, "card", models / "hf", expected)
        good &= bad <= known and card_bad <= known
        print(f"| {release} | {native} | {card} |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
