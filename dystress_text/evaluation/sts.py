"""Semantic textual similarity: the files and the score.

What training needs of evaluation; ``eval/`` builds on it. Protocol: SentEval's, with Spearman's correlation x 100 over
cosine similarities, "all" aggregation, as SimCSE reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dystress_text.core.geometry import alignment, uniformity
from dystress_text.core.rows import positive_similarity, unit_vectors
from dystress_text.errors import DataError

Embed = Callable[[Sequence[str]], Tensor]

POSITIVE_SCORE = 4.0  # pairs scored above it are the positives of alignment on text, as is usual for SimCSE

STS_SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}


@dataclass(frozen=True)
class StsPairs:
    """Sentence pairs with gold scores.

    Attributes:
        name: of the set, as tables print it.
        first: the pairs' first sentences.
        second: the pairs' second sentences.
        scores: (pairs,) gold similarity, 0 to 5 (SICK: 1 to 5), or any finite numbers of one's own.
        positive_above: pairs scored above it are the positives of alignment.
    """

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: NDArray[np.float64]
    positive_above: float = POSITIVE_SCORE

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def slug(self) -> str:
        """The name as metrics carry it: ``STS-B dev`` is ``sts_b_dev``."""
        return self.name.lower().replace("-", "_").replace(" ", "_")

    @property
    def sentences(self) -> list[str]:
        """The distinct sentences, in order of appearance."""
        return list(dict.fromkeys([*self.first, *self.second]))


@dataclass(frozen=True)
class StsResult:
    """What a set says of an encoder.

    Attributes:
        spearman: rank correlation of cosine and gold score, x 100.
        alignment: of the pairs scored above ``positive_above`` (4 of 5 on STS); NaN if there is none.
        uniformity: of the distinct sentences.
    """

    spearman: float
    alignment: float
    uniformity: float


def read_sts_benchmark(path: str | Path, name: str = "STS-B") -> StsPairs:
    """A file of the STS Benchmark's layout: tabs, no header, no quoting, score in column 5, sentences in 6 and 7."""
    return _parse(name, Path(path), score=4, first=5, second=6)


def read_sick(path: str | Path, name: str = "SICK-R") -> StsPairs:
    """A SICK file: tabs, a header, sentences in columns 2 and 3, relatedness in column 4."""
    return _parse(name, Path(path), score=3, first=1, second=2, header=True)


def read_sts_year(folder: str | Path, name: str) -> dict[str, StsPairs]:
    """The subsets of one of STS12 to STS16, by name; pairs without a score are dropped.

    Args:
        folder: SentEval's folder, such as ``STS/STS12-en-test``.
        name: such as ``STS12``.
    """
    subsets = {}
    for subset in STS_SUBSETS[name]:
        inputs, golds = Path(folder) / f"STS.input.{subset}.txt", Path(folder) / f"STS.gs.{subset}.txt"
        pairs, scores = read_lines(inputs), read_lines(golds)
        if len(pairs) != len(scores):
            raise DataError(
                f"{inputs} has {len(pairs)} lines and {golds} has {len(scores)}: they must be of one length"
            )
        rows = []
        for number, (pair, score) in enumerate(zip(pairs, scores, strict=True), 1):
            if score.strip():
                first, second, *_ = _fields(pair, inputs, number, 2)
                rows.append((first, second, score, number))
        subsets[subset] = _pairs(f"{name} {subset}", golds, rows)
    return subsets


def concatenate(name: str, parts: Sequence[StsPairs]) -> StsPairs:
    """All pairs of several sets as one, for the "all" score."""
    return StsPairs(
        name,
        tuple(s for part in parts for s in part.first),
        tuple(s for part in parts for s in part.second),
        np.concatenate([part.scores for part in parts]),
    )


def spearman(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """Spearman's rank correlation of two vectors, x 100; NaN where one of them is constant or holds a NaN."""
    if np.isnan(x).any() or np.isnan(y).any() or x.min() == x.max() or y.min() == y.max():
        return float("nan")
    return 100 * float(stats.spearmanr(x, y).statistic)


def score_vectors(pairs: StsPairs, vectors: Tensor) -> StsResult:
    """Score the vectors of ``pairs.sentences``, (distinct sentences, dim)."""
    units = unit_vectors(vectors)
    first, second = sides(pairs, units)
    positive = torch.from_numpy(pairs.scores > pairs.positive_above)
    return StsResult(
        spearman=spearman(positive_similarity(first, second).numpy(), pairs.scores),
        alignment=float(alignment(first[positive], second[positive])) if positive.any() else float("nan"),
        uniformity=float(uniformity(units)),
    )


def sides(pairs: StsPairs, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors of both sentences of each pair, (pairs, dim), from those of ``pairs.sentences``."""
    row = {sentence: i for i, sentence in enumerate(pairs.sentences)}
    return vectors[[row[s] for s in pairs.first]], vectors[[row[s] for s in pairs.second]]


def cosines(pairs: StsPairs, embed: Embed) -> NDArray[np.floating]:
    """Cosine similarity of each pair, (pairs,), in fp64."""
    first, second = (unit_vectors(embed(texts).double()) for texts in (pairs.first, pairs.second))  # (pairs, dim)
    return positive_similarity(first, second).cpu().numpy()


def evaluate_sts(pairs: StsPairs, embed: Embed) -> StsResult:
    """Score an encoder, given as a function from sentences to vectors (n, dim); each sentence is embedded once."""
    return score_vectors(pairs, embed(pairs.sentences))


def _parse(name: str, path: Path, score: int, first: int, second: int, header: bool = False) -> StsPairs:
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        if header and number == 1:
            continue
        fields = _fields(line, path, number, max(score, first, second) + 1)
        rows.append((fields[first], fields[second], fields[score], number))
    return _pairs(name, path, rows)


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """Lines of a file, split at line feeds alone, without an empty last one.

    Raises:
        DataError: the file cannot be read or decoded, or is empty.
    """
    try:
        with path.open(encoding=encoding, newline="\n") as file:
            text = file.read()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    if not text:
        raise DataError(f"{path} is empty")
    return text.removesuffix("\n").split("\n")


def _fields(line: str, path: Path, number: int, at_least: int) -> list[str]:
    fields = line.split("\t")
    if len(fields) < at_least:
        raise DataError(f"{path}, line {number}: {at_least} tab-separated columns expected, {len(fields)} found")
    return fields


def _pairs(name: str, path: Path, rows: Sequence[tuple[str, str, str, int]]) -> StsPairs:
    """Pairs of (first, second, score, line number) as texts, white space collapsed."""
    scores = np.empty(len(rows))
    for i, (_, _, score, number) in enumerate(rows):
        try:
            scores[i] = float(score)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {score!r} is no score") from error
    if len(rows) == 0 or not np.isfinite(scores).all():
        raise DataError(f"{path}: no pair with a score" if len(rows) == 0 else f"{path}: a score is not finite")
    return StsPairs(
        name, tuple(" ".join(r[0].split()) for r in rows), tuple(" ".join(r[1].split()) for r in rows), scores
    )
