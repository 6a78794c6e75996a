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
import copy
import json
import resource
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from devices import device_name, here, wait
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from dystress_text.evaluation.catalogue import TRANSFER_TASKS, TransferTask
from dystress_text.evaluation.classifier import (
    L2_VALUES,
    MAX_EPOCHS,
    RECIPES,
    SEED,
    Fits,
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
    train = task.counts["train"]
    return [Subset(np.arange(train), np.arange(train, len(labels)))]


def fit_literal(
    x: Tensor, y: Tensor, classes: int, subsets: Sequence[Subset], l2: NDArray[np.float64], recipe: Recipe
) -> Fits:
    """One classifier after another, as SentEval trains them."""
    optimizers = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
    start = initial_layer(x.shape[1], classes)
    accuracy = np.empty(l2.shape)
    weight = x.new_empty(*l2.shape, classes, x.shape[1])
    bias = x.new_empty(*l2.shape, classes)
    for s, subset in enumerate(subsets):
        for k, decay in enumerate(l2[s]):
            random, train, held_out = _draw_split(subset)
            train_x, train_y, held_x, held_y = x[train], y[train], x[held_out], y[held_out]
            layer = copy.deepcopy(start).to(x)
            optimizer = optimizers[recipe.optimizer](layer.parameters(), weight_decay=decay)
            best, best_layer, misses, epochs = -1.0, layer, 0, 0
            while epochs <= MAX_EPOCHS:
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
                if reached > best:
                    best, best_layer = reached, copy.deepcopy(layer)
                elif misses >= recipe.patience:
                    break
                else:
                    misses += 1
            accuracy[s, k] = best
            weight[s, k], bias[s, k] = best_layer.weight.detach(), best_layer.bias.detach()
    return Fits(accuracy, weight, bias)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=int, default=20, help="train every so manieth literal fit (default 20)")
    parser.add_argument("--repeats", type=int, default=3, help="of the batched form (default 3)")
    parser.add_argument("--tasks", nargs="+", help="of the seven; default all")
    parser.add_argument("--dim", type=int, default=DIM, help="of the vectors (default 768)")
    options = parser.parse_args()
    share: int = options.share
    recipe = RECIPES["test"]
    record: list[dict[str, object]] = []
    total_batched = total_literal = 0.0
    differences = []
    print("| task | fits | batched, s | literal, s (scaled) | ratio | difference, points |")
    print("|---|---|---|---|---|---|")
    for task in TRANSFER_TASKS:
        if options.tasks and task.name not in options.tasks:
            continue
        rows = sum(count for split, count in task.counts.items() if split != "test")
        x, y = make_vectors(rows, task.classes, options.dim * (2 if task.name == "MRPC" else 1))
        subsets = choosing_fits(task, y)
        grid = np.tile(np.array(L2_VALUES), (len(subsets), 1))
        pairs = [(s, k) for s in range(len(subsets)) for k in range(len(L2_VALUES))]
        chosen = pairs[:: share if len(pairs) > share else 2]
        batched_times: list[float] = []
        literal_times: list[float] = []
        apart: list[float] = []
        for part in range(options.repeats):
            start = time.perf_counter()
            together = fit(x, y, task.classes, subsets, grid, recipe)
            wait(here())
            batched_times.append(time.perf_counter() - start)
            for s, k in chosen[len(apart) : len(chosen) * (part + 1) // options.repeats]:
                start = time.perf_counter()
                fits = fit_literal(x, y, task.classes, [subsets[s]], grid[s : s + 1, k : k + 1], recipe)
                literal_times.append(time.perf_counter() - start)  # its accuracies are read, so the device is done
                apart.append(fits.accuracy[0, 0])
        batched, literal = statistics.median(batched_times), statistics.median(literal_times) * len(pairs)
        difference = [100 * abs(a - together.accuracy[s, k]) for a, (s, k) in zip(apart, chosen, strict=True)]
        differences += difference
        total_batched, total_literal = total_batched + batched, total_literal + literal
        print(
            f"| {task.name} | {len(pairs)} | {batched:.1f} | {literal:.0f} | {literal / batched:.1f} | "
            f"{np.mean(difference):.3f} (at worst {max(difference):.3f}) |",
            flush=True,
        )
        record.append({"task": task.name, "fits": len(pairs), "batched": batched, "literal": literal})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"| all | | {total_batched:.1f} | {total_literal:.0f} | {total_literal / total_batched:.1f} | "
        f"{np.mean(differences):.3f} (at worst {max(differences):.3f}) |\n\npeak memory {peak:.2f} GB, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(json.dumps({"device": device_name(here()), "tasks": record, "difference": max(differences)}))


if __name__ == "__main__":
    main()
