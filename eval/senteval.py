"""Evaluate sentence vectors on the STS tasks under SentEval's protocol.

    python eval/senteval.py --model out/
    python eval/senteval.py --model bert-base-uncased --pooler_type avg --tasks STS12 STS-B

``--model`` is a sentence-transformers folder, or with ``--pooler_type`` a Hugging Face folder or name. Figures are
Spearman's correlation x 100, "all" aggregation. A task whose files are missing is marked, no average is then given, and
the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import transformers

from dystress_text.encoder import POOLERS, load_encoder
from dystress_text.errors import UserError
from dystress_text.locate import data_root
from dystress_text.sts import (
    STS_SUBSETS,
    Embed,
    StsPairs,
    concatenate,
    evaluate_sts,
    read_sick,
    read_sts_benchmark,
    read_sts_year,
)

TASKS = (*STS_SUBSETS, "STS-B", "SICK-R")


def read_task(task: str, senteval: Path) -> StsPairs:
    """The test pairs of a task from SentEval's ``downstream`` folder.

    Raises:
        UserError: a file is missing or damaged.
    """
    if task == "STS-B":
        return read_sts_benchmark(senteval / "STS" / "STSBenchmark" / "sts-test.csv", task)
    if task == "SICK-R":
        return read_sick(senteval / "SICK" / "SICK_test_annotated.txt", task)
    subsets = read_sts_year(senteval / "STS" / f"{task}-en-test", task)
    return concatenate(task, list(subsets.values()))


def load_embedder(model: str, pooler_type: str | None) -> Embed:
    """A function from sentences to vectors.

    Raises:
        UserError: nothing loads from there.
    """
    if pooler_type is None:
        if not (Path(model) / "modules.json").is_file():
            raise UserError(f"--model: {model!r} is no sentence-transformers folder; for others give --pooler_type")
        from sentence_transformers import SentenceTransformer  # slow to import

        sentence_transformer = SentenceTransformer(model)
        return lambda sentences: sentence_transformer.encode(
            list(sentences), convert_to_tensor=True, show_progress_bar=False
        ).cpu()
    encoder, tokenizer = load_encoder(model, pooler_type, mlp_head=False)

    def embed(sentences: Sequence[str]) -> object:
        return encoder.encode(sentences, tokenizer)

    return embed  # type: ignore[return-value]  # one pooler: a tensor


def run(model: str, pooler_type: str | None, tasks: Sequence[str], senteval: Path) -> dict[str, float | None]:
    """Spearman x 100 by task, rounded to two decimals; None where the files are missing."""
    embed = load_embedder(model, pooler_type)
    scores: dict[str, float | None] = {}
    for task in tasks:
        try:
            pairs = read_task(task, senteval)
        except UserError as error:
            print(f"senteval.py: {task} left out: {error}", file=sys.stderr)
            scores[task] = None
            continue
        scores[task] = round(evaluate_sts(pairs, embed).spearman, 2)
    return scores


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--pooler_type", choices=POOLERS)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--data_dir", help="where prepared data lie; default $DYSTRESS_DATA, else data/prepared")
    options = parser.parse_args(argv)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        scores = run(options.model, options.pooler_type, options.tasks, data_root(options.data_dir) / "senteval")
    except UserError as error:
        print(f"senteval.py: error: {error}", file=sys.stderr)
        return 2
    known = [score for score in scores.values() if score is not None]
    complete = len(known) == len(scores)
    average = f"{sum(known) / len(known):.2f}" if complete else "-"
    print(" ".join(f"{task:>7}" for task in [*scores, "avg"]))
    cells = ["missing" if score is None else f"{score:.2f}" for score in scores.values()]
    print(" ".join(f"{cell:>7}" for cell in [*cells, average]))
    print(json.dumps({"model": options.model, "pooler_type": options.pooler_type, "spearman": scores}))
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
