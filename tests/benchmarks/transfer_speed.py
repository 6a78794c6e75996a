"""Batched against literal classifiers: time, accuracies, memory.

    python tests/benchmarks/transfer_speed.py [--share 20] [--repeats 3] [--tasks TREC MRPC]

All seven transfer tasks in test mode on vectors of 768 dimensions. Texts are stood for by vectors with the classes' own
centres, at the real sizes, so that no model and no data are needed. The batched form trains every fit of the protocol
that chooses l2, ``--repeats`` times, in turn with the literal form, which trains every 20th (``--share``) of them.
Times are the median repetition of the batched form, and the literal form's median fit times the number of fits, so that
a stall of the machine counts for neither. Accuracies are compared on the fits that both have trained. The fits run on
an accelerator where there is one.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from devices import device_name, here, wait
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from dystress_text.evaluation.catalogue import TRANSFER_TASKS, TransferTask
from dystress_text.evaluation.classifier import (
    L2_VALUES,
    MAX_EPOCHS,
    RECIPES,
    SEED,
    Recipe,
    Subset,
    _draw_split,
    fit,
    initial_layer,
)

DIM = 768
SEPARATION = 0.045  # of the centres, so that accuracies are those of real tasks: 75 to 90


def make_vectors(rows: int, classes: int, dim: int) -> tuple[Tensor, Tensor]:
    """Overlapping clouds."""
    generator = torch.Generator().manual_seed(rows)
    y = torch.randint(classes, (rows,), generator=generator)
    centres = SEPARATION * torch.randn(classes, dim, generator=generator)
    x = centres[y] + torch.randn(rows, dim, generator=generator)
    return x.to(here()), y.to(here())


def choosing_fits(task: TransferTask, y: Tensor) -> list[Subset]:
    """The subsets on which the protocol chooses l2."""
    folds = StratifiedKFold(RECIPES["test"].folds, shuffle=True, random_state=SEED)
    labels = y.cpu().numpy()
    if task.scheme == "folds":
        outer = [train for train, _ in folds.split(labels, labels)]
        return [Subset(t[i], t[j]) for t in outer for i, j in folds.split(t, labels[t])]
    if task.scheme == "test":
        return [Subset(i, j) for i, j in folds.split(labels, labels)]
    train = task.parts["train"][0]
    return [Subset(np.arange(train), np.arange(train, len(labels)))]


def fit_literal(x: Tensor, y: Tensor, classes: int, subset: Subset, l2: float, recipe: Recipe) -> float:
    """The accuracy of one classifier, as SentEval trains it."""
    random, train, held_out = _draw_split(subset)
    train_x, train_y, held_x, held_y = x[train], y[train], x[held_out], y[held_out]
    layer = initial_layer(x.shape[1], classes).to(x)
    optimizer = torch.optim.Adam(layer.parameters(), weight_decay=l2)
    best, misses, epochs = -1.0, 0, 0
    while epochs <= MAX_EPOCHS and misses <= recipe.patience:
        for _ in range(recipe.check_every):
            permutation = torch.from_numpy(random.permutation(len(train))).to(x.device)
            for rows in torch.split(permutation, recipe.batch_size):
                loss = nn.functional.cross_entropy(layer(train_x[rows]), train_y[rows])
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
        epochs += recipe.check_every
        with torch.no_grad():
            reached = int((layer(held_x).argmax(1) == held_y).sum()) / len(held_out)
        misses += reached <= best
        best = max(best, reached)
    return best


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=int, default=20, help="train every so manieth literal fit (default 20)")
    parser.add_argument("--repeats", type=int, default=3, help="of the batched form (default 3)")
    parser.add_argument("--tasks", nargs="+", help="of the seven; default all")
    parser.add_argument("--dim", type=int, default=DIM, help="of the vectors (default 768)")
    options = parser.parse_args()
    recipe = RECIPES["test"]
    totals, differences = np.zeros(2), []
    print("| task | fits | batched, s | literal, s (scaled) | ratio | difference, points |\n|---|---|---|---|---|---|")
    for task in TRANSFER_TASKS:
        if options.tasks and task.name not in options.tasks:
            continue
        rows = sum(count for split, (count, *_) in task.parts.items() if split != "test")
        x, y = make_vectors(rows, task.classes, options.dim * (2 if task.name == "MRPC" else 1))
        subsets = choosing_fits(task, y)
        grid = np.tile(np.array(L2_VALUES), (len(subsets), 1))
        pairs = [(s, k) for s in range(len(subsets)) for k in range(len(L2_VALUES))]
        chosen = pairs[:: options.share if len(pairs) > options.share else 2]
        times: dict[str, list[float]] = {"batched": [], "literal": []}
        apart: list[float] = []
        for part in range(options.repeats):
            start = time.perf_counter()
            together = fit(x, y, task.classes, subsets, grid, recipe)
            wait(here())
            times["batched"].append(time.perf_counter() - start)
            for s, k in chosen[len(apart) : len(chosen) * (part + 1) // options.repeats]:
                start = time.perf_counter()
                alone = fit_literal(x, y, task.classes, subsets[s], grid[s, k], recipe)
                times["literal"].append(time.perf_counter() - start)  # its accuracy is read, so the device is done
                apart.append(100 * abs(alone - together.accuracy[s, k]))
        batched, literal = statistics.median(times["batched"]), statistics.median(times["literal"]) * len(pairs)
        differences += apart
        totals += batched, literal
        print(_row(task.name, len(pairs), batched, literal, apart), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(_row("all", "", float(totals[0]), float(totals[1]), differences))
    print(f"\npeak memory {peak:.2f} GB, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(json.dumps({"device": device_name(here()), "seconds": totals.tolist(), "difference": max(differences)}))


def _row(name: str, fits: int | str, batched: float, literal: float, apart: Sequence[float]) -> str:
    worst = f"{np.mean(apart):.3f} (at worst {max(apart):.3f})"
    return f"| {name} | {fits} | {batched:.1f} | {literal:.0f} | {literal / batched:.1f} | {worst} |"


if __name__ == "__main__":
    main()
