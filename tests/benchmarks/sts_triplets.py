"""Triplets for supervised training from a scored set: pairs scored 4 or more, with a low-scored partner.

    python tests/benchmarks/sts_triplets.py --pairs sts-train.csv --output triplets.csv

A pair's hard negative is a sentence scored 2 or less with one of its two. Most sentences stand in one pair alone and
have none; theirs is drawn by the seed from the sentences of all pairs scored 2 or less.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from dystress_text.evaluation.readers import StsPairs, read_sts_benchmark

POSITIVE, NEGATIVE = 4.0, 2.0


def triplets(pairs: StsPairs, seed: int = 0) -> tuple[list[tuple[str, str, str]], int]:
    """Anchor, positive and hard negative of each pair, and how many hard negatives are partners of their own pair."""
    partners: dict[str, list[str]] = defaultdict(list)
    scored = list(zip(pairs.first, pairs.second, pairs.scores, strict=True))
    for first, second, score in scored:
        if score <= NEGATIVE:
            partners[first].append(second)
            partners[second].append(first)
    low = list(partners)
    draw = np.random.default_rng(seed)
    rows, own = [], 0
    for first, second, score in scored:
        if score >= POSITIVE and first != second:
            found = partners.get(first, []) + partners.get(second, [])
            own += bool(found)
            rows.append((first, second, str(draw.choice(found or low))))
    return rows, own


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", required=True, help="sts-train.csv of STS-B")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows, own = triplets(read_sts_benchmark(options.pairs, "STS-B train"), options.seed)
    with options.output.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("sent0", "sent1", "hard_neg"), *rows])
    print(f"{len(rows):,} triplets, {own} with a partner of their own, in {options.output}")


if __name__ == "__main__":
    main()
