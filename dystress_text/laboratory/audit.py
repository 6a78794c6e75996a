"""What a temperature rule amounted to, from the lines of a similarity log: the nearest constant,
and how near it is.

The distance is that of :mod:`dystress_text.core.diagnosis`: the share of the negatives' gradient
that must be moved. All steps count the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.core.diagnosis import BINS, Comparison, PairSums, compare, pair_sums
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.objectives import loss as core_loss
from dystress_text.errors import ParameterError, UserError
from dystress_text.files.places import model_path, refuse_folder
from dystress_text.training.similarity_log import HIGH_SIMILARITY, lines_of
from dystress_text.training.surroundings import left_as_they_were

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# a rule is expected to train like its nearest constant if less of the negatives' gradient is moved,
# and if the gradient of the positives differs from that of the negatives by less
EQUIVALENT_MOVED = EQUIVALENT_PULL = 0.10
END = 0.1  # the share of the steps that are the first, or the last ones

Floats = NDArray[np.float64]
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Window:
    """A rule over some steps."""

    steps: tuple[int, int]  # the first and the last one
    tau: float  # the nearest constant
    moved: float  # the share of the negatives' gradient that must be moved to turn the rule's into that constant's
    pull: float  # the gradient of the positives over that of the negatives; 1 for InfoNCE
    negative: float  # mean similarity of the negatives
    taus: Floats  # the constants that the rule was compared with, (constants,)
    moved_by_constant: Floats  # of each, (constants,)
    rule: Floats  # shares of the negatives' gradient by similarity, (BINS,)
    constant: Floats  # the same under the nearest constant, (BINS,)

    @property
    def equivalent(self) -> bool:
        return self.moved < EQUIVALENT_MOVED and abs(self.pull - 1) < EQUIVALENT_PULL

    @property
    def along_axis(self) -> float:
        """The share that moves along the similarity axis; the rest moves between pairs of one
        similarity.
        """
        return float(np.abs(self.rule - self.constant).sum() / 2)


@dataclass(frozen=True)
class Audit:
    """A rule on a data set."""

    source: str  # where its batches come from
    loss: str  # such as ``infonce(cosine(0.05, 0.07))``
    data: str  # sentences or images
    negatives: int  # their number
    windows: Mapping[
        str, Window
    ]  # ``all`` and, where there are several logged parts, ``first`` and ``last``


def windows_of(lines: Sequence[Line], log: object) -> tuple[dict[str, Window], int]:
    """The windows of a similarity log of this name, and the number of negatives in it."""
    try:
        compared = [line for line in lines if "comparison" in line]
        firsts = [
            1,
            *(line["step"] + 1 for line in compared),
        ]  # a comparison is of the steps since the one before
        parts = [
            part for part in zip(firsts, compared, strict=False) if part[1]["comparison"]["batches"]
        ]
        if not parts:
            raise UserError(
                f"{log} compares no gradient of negatives with constants: train with --log_similarity"
            )
        total = parts[-1][1]["step"]
        first = [(start, line) for start, line in parts if line["step"] <= END * total] or parts[:1]
        last = [(start, line) for start, line in parts if start > (1 - END) * total] or parts[-1:]
        chosen = {"first": first, "all": parts, "last": last} if len(parts) > 1 else {"all": parts}
        negatives = round(sum(sum(line["histograms"]["negatives"]) for line in compared))
        return {name: _window(some, lines) for name, some in chosen.items()}, negatives
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{log} is damaged: {type(error).__name__} {error}") from error


def audit(
    model: SentenceTransformer | str,
    sentences: Sequence[str],
    loss: ContrastiveLoss | str,
    batch_size: int = 64,
    seed: int = 42,
) -> Audit:
    """What a loss amounts to on the two dropout views of sentences, without training.

    Args:
        model: a model, or its folder or name.
        sentences: any number; the last ones that fill no batch are left out.
        loss: an objective or its text.
        batch_size: sentences that are each other's negatives.
        seed: of the dropout.

    Raises:
        UserError: the sentences fill no batch, or the loss has no negatives.

    Examples:
        >>> texts = ["It rains.", "A dog ran home.", "The bank was closed.", "She sings in a choir."]
        >>> found = audit("bert-mini-wiki", texts, "infonce(0.05)", batch_size=4)
        >>> found.negatives  # of each text the three others
        12
        >>> round(found.windows["all"].tau, 3), found.windows["all"].equivalent  # a constant is nearest to itself
        (0.05, True)
    """
    from sentence_transformers import SentenceTransformer

    objective = core_loss(loss) if isinstance(loss, str) else loss
    if not isinstance(objective, ContrastiveLoss):
        raise ParameterError("loss", f"{objective} has no negatives to look at")
    if isinstance(model, str):
        refuse_folder("model", model)
    encoder = SentenceTransformer(model_path(model)) if isinstance(model, str) else model
    if len(sentences) < batch_size:
        raise ParameterError("sentences", f"{len(sentences)} fill no batch of {batch_size}")
    sums: list[PairSums] = []
    compared: list[Comparison] = []
    with left_as_they_were(), torch.no_grad(), ExitStack() as after:
        torch.manual_seed(seed)
        after.callback(encoder.train, encoder.training)
        encoder.train()
        for start in range(0, len(sentences) - batch_size + 1, batch_size):
            features = encoder.preprocess(list(sentences[start : start + batch_size]))
            features = {
                name: each.to(encoder.device)
                for name, each in features.items()
                if isinstance(each, Tensor)
            }
            views = [
                encoder(dict(features))["sentence_embedding"].float() for _ in range(2)
            ]  # (batch, dim) each
            sums.append(
                PairSums(
                    *(each.double().cpu() for each in pair_sums(objective, views, HIGH_SIMILARITY))
                )
            )
            compared.append(
                Comparison(*(each.double().cpu() for each in compare(objective, views)))
            )
    steps = PairSums(*map(torch.stack, zip(*sums, strict=True)))
    lines = lines_of(
        steps, Comparison(*(torch.stack(each).sum(0) for each in zip(*compared, strict=True)))
    )
    windows, negatives = windows_of(
        [{"step": i, **line} for i, line in enumerate(lines, 1)], "this audit"
    )
    return Audit("sentences", str(objective), "sentences", negatives, windows)


def _window(parts: Sequence[tuple[int, Line]], lines: Sequence[Line]) -> Window:
    compared = [line["comparison"] for _, line in parts]
    weights = [comparison["batches"] for comparison in compared]

    def mean(values: Sequence[Any]) -> Floats:
        return np.asarray(np.average(np.array(values, dtype=float), axis=0, weights=weights))

    def spread(
        shares: Sequence[float], first_bin: int
    ) -> Floats:  # the log has only the bins that hold some
        return np.pad(np.array(shares, dtype=float), (first_bin, BINS - first_bin - len(shares)))

    taus, moved = np.array(compared[0]["tau"], dtype=float), mean([c["moved"] for c in compared])
    tau, least = nearest_constant(taus, moved)
    constants = mean(
        [[spread(row, c["first_bin"]) for row in c["constants"]] for c in compared]
    )  # (constants, BINS)
    between = np.array([np.interp(math.log(tau), np.log(taus), column) for column in constants.T])
    first, last = parts[0][0], parts[-1][1]["step"]
    negative = [
        line["negative"]
        for line in lines
        if first <= line["step"] <= last and line["negative"] is not None
    ]
    return Window(
        (first, last), tau, least, float(mean([c["pull"] for c in compared])), float(np.mean(negative)), taus, moved,
        mean([spread(c["rule"], c["first_bin"]) for c in compared]), between,
    )  # fmt: skip


def nearest_constant(taus: Floats, moved: Floats) -> tuple[float, float]:
    """The constant with the least moved share, and this share, between the constants that were
    tried.

    For a rule that is a constant the share is a V over the logarithm of tau, for others a rounded
    V: its square is smooth in both cases. A polynomial through the squares at the five constants
    around the least one gives the minimum.

    Both are (constants,), the constants at equal steps of their logarithm.
    """
    least = int(np.argmin(moved))
    if least in (0, len(taus) - 1):
        return float(taus[least]), float(moved[least])
    start = min(max(least - 2, 0), len(taus) - 5)
    through = np.polyfit(np.arange(start, start + 5) - least, moved[start : start + 5] ** 2, 4)
    places = np.linspace(-1, 1, 2001)
    squares = np.polyval(through, places)
    best = int(np.argmin(squares))
    step = math.log(taus[-1] / taus[0]) / (len(taus) - 1)
    return float(taus[least] * math.exp(places[best] * step)), math.sqrt(
        max(0.0, float(squares[best]))
    )


# ---- what a reader gets
# ----------------------------------------------------------------------------------------------


def in_words(audit: Audit) -> list[str]:
    """The audit in a few lines; the first one says what the rule amounts to."""
    window = audit.windows["all"]
    name, moved = tau_in_words(window), f"{100 * window.moved:.1f} % of the gradient"
    amounts = f"is no constant: the nearest is {name}, and {moved} must be moved"
    if window.moved < EQUIVALENT_MOVED:
        amounts = f"is the constant {name} to within {moved}"
    expected = f"it is {'' if window.equivalent else 'not '}expected to train like it"
    lines = [f"On these {audit.data} this rule {amounts}; {expected}."]
    if abs(window.pull - 1) >= EQUIVALENT_PULL:
        times = f"{window.pull:.2f} times that of its negatives"
        lines.append(f"The gradient of its positives is {times}; that of InfoNCE is 1.00 times.")
    return lines


def tau_in_words(window: Window) -> str:
    """The nearest constant, with a word if it is the first or the last one that was tried."""
    ends = {float(window.taus[0]): " or less", float(window.taus[-1]): " or more"}
    return f"{window.tau:.4f}{ends.get(window.tau, '')}"


def table(audit: Audit) -> list[list[str]]:
    """The windows side by side, the header first."""
    lines = [["steps", "nearest constant", "moved", "along s", "pull", "mean s of negatives"]]
    for w in audit.windows.values():
        steps, shares = (
            "{:,} to {:,}".format(*w.steps),
            (f"{100 * w.moved:.1f} %", f"{100 * w.along_axis:.1f} %"),
        )
        lines.append([steps, tau_in_words(w), *shares, f"{w.pull:.2f}", f"{w.negative:.3f}"])
    return lines


def record_of(audit: Audit) -> dict[str, Any]:
    """The audit as ``audit.json`` holds it; ``edges`` are those of the bins of ``rule`` and
    ``constant``.
    """
    whole = audit.windows["all"]
    return {
        **vars(audit),
        "nearest_constant": round(whole.tau, 5),
        "moved": round(whole.moved, 5),
        "pull": round(whole.pull, 5),
        "equivalent": whole.equivalent,
        "equivalent_below": {"moved": EQUIVALENT_MOVED, "pull": EQUIVALENT_PULL},
        "edges": np.linspace(-1, 1, BINS + 1).round(5).tolist(),
        "windows": {
            name: {key: np.round(value, 5).tolist() for key, value in vars(window).items()}
            for name, window in audit.windows.items()
        },
    }
