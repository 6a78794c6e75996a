"""Seconds until something is there: imports, the help, a wrong option, one training step with its model saved.

    python tests/benchmarks/startup.py [--repeats 5]

Each contestant is a fresh process, in turn, with warm file caches after the first round. The one step trains the
embedded encoder on 64 sentences; beside it sentence-transformers' trainer does the same.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from devices import in_turn

from dystress_text.files.places import EMBEDDED, PACKAGE

SENTENCES = [f"sentence number {i} of sixty-four" for i in range(64)]
THEIRS = """
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
model = SentenceTransformer({model!r})
arguments = SentenceTransformerTrainingArguments(
    output_dir={folder!r}, per_device_train_batch_size=64, max_steps=1, save_strategy="no", report_to="none"
)
data = Dataset.from_dict(dict(anchor={sentences!r}, positive={sentences!r}))
SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model)).train()
model.save({folder!r})
"""


def main() -> None:
    """Print the table and its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "sentences.txt"
        text.write_text("\n".join(SENTENCES))
        model, out = str(EMBEDDED / "bert-mini-wiki"), str(Path(folder) / "out")
        program = str(PACKAGE / "train.py")
        step = ["--model_name_or_path", model, "--train_file", str(text), "--eval_set", "none", "--max_steps", "1"]
        contestants = {
            "import torch": ["-c", "import torch"],
            "import dystress_text": ["-c", "import dystress_text"],
            "import transformers' BERT": ["-c", "from transformers import BertModel"],
            "import sentence_transformers": ["-c", "import sentence_transformers"],
            "train.py --help": [program, "--help"],
            "train.py --list_presets": [program, "--list_presets"],
            "train.py, a misspelt option": [program, "--presett", "small"],
            "dystress": ["-m", "dystress_text"],
            "train.py, one step": [program, *step, "--output_dir", out, "--overwrite_output_dir"],
            "sentence-transformers, one step": [
                "-c", THEIRS.format(model=model, folder=f"{folder}/theirs", sentences=SENTENCES)
            ],
        }  # fmt: skip

        def seconds_of(arguments: list[str]) -> float:
            start = time.perf_counter()
            ended = subprocess.run([sys.executable, *arguments], capture_output=True)
            assert ended.returncode == 2 * ("--presett" in arguments), ended.stderr.decode()
            return time.perf_counter() - start

        seconds = in_turn({name: partial(seconds_of, each) for name, each in contestants.items()}, options.repeats)
    for name, values in seconds.items():
        print(f"{name:32} {statistics.median(values):7.2f} s   {min(values):.2f} to {max(values):.2f}")


if __name__ == "__main__":
    main()
