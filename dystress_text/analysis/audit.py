"""What a temperature rule amounted to, from the lines of a similarity log: the nearest constant,
and how near it is.

The distance is that of :mod:`dystress_text.losses.diagnosis`: the share of the negatives' gradient
that must be moved. All steps count the same.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.errors import ParameterError, UserError
from dystress_text.io.paths import model_path, refuse_folder
from dystress_text.losses.diagnosis import BINS, ConstantComparison, PairSums, compare, pair_sums
from dystress_text.losses.objectives import ContrastiveLoss
from dystress_text.losses.objectives import loss as core_loss
from dystress_text.training.global_state import restored_global_state
from dystress_text.training.similarity_log import HIGH_SIMILARITY, lines_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# a rule is expected to train like its nearest constant if less of the negatives' gradient is moved,
# and if the gradient of the positives differs from that of the negatives by less
EQUIVALENT_MOVED = 0.10
EQUIVALENT_PULL = 0.10
END = 0.1  # the share of the steps that are the first, or the last ones

Floats = NDArray[np.float64]
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Window:
    """A rule over some steps."""

    steps: tuple[int, int]  # the first and the last one
    tau: float  # the nearest constant
    # the share of the negatives' gradient to move to turn the rule's into that constant's
    moved: float
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
    # ``all`` and, where there are several logged parts, ``first`` and ``last``
    windows: Mapping[str, Window]


def windows_of(lines: Sequence[Line], log: object) -> tuple[dict[str, Window], int]:
    """Return the windows of a similarity log of this name, and the number of negatives in it."""
    try:
        parts = _parts(lines)
        if not parts:
            raise UserError(
                f"{log} compares no gradient of negatives with constants: "
                "train with --log_similarity"
            )
        total = parts[-1].last
        chosen = {"all": parts}
        if len(parts) > 1:
            first = [part for part in parts if part.last <= END * total]
            last = [part for part in parts if part.first > (1 - END) * total]
            chosen = {"first": first or parts[:1], "all": parts, "last": last or parts[-1:]}
        histograms = [line["histograms"]["negatives"] for line in lines if "comparison" in line]
        negatives = round(sum(map(sum, histograms)))
        return {name: _window(some, lines) for name, some in chosen.items()}, negatives
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{log} is damaged: {type(error).__name__} {error}") from error


class _Part(NamedTuple):
    """A comparison of a log, with the first and the last step that it is of."""

    first: int
    last: int
    comparison: Mapping[str, Any]

    def shares(self, values: Sequence[float]) -> Floats:
        """Return shares for all bins, (BINS,); the log has only those from ``first_bin`` on."""
        before = self.comparison["first_bin"]
        return np.pad(np.array(values, dtype=float), (before, BINS - before - len(values)))


def _parts(lines: Sequence[Line]) -> list[_Part]:
    """Return the comparisons that compare a batch; each is of the steps since the one before."""
    parts = []
    first = 1
    for line in lines:
        if "comparison" in line:
            parts.append(_Part(first, line["step"], line["comparison"]))
            first = line["step"] + 1
    return [part for part in parts if part.comparison["batches"]]


def audit(
    model: SentenceTransformer | str,
    sentences: Sequence[str],
    loss: ContrastiveLoss | str,
    batch_size: int = 64,
    seed: int = 42,
) -> Audit:
    """Return what a loss amounts to on the two dropout views of sentences, without training.

    Args:
        model: a model, or its folder or name.
        sentences: any number; the last ones that fill no batch are left out.
        loss: an objective or its text.
        batch_size: sentences that are each other's negatives.
        seed: of the dropout.

    Raises:
        UserError: the sentences fill no batch, or the loss has no negatives.

    Examples:
        >>> texts = ["It rains.", "A dog ran home.", "The bank was closed.", "She sings."]
        >>> found = audit("bert-mini-wiki", texts, "infonce(0.05)", batch_size=4)
        >>> found.negatives  # of each text the three others
        12
        >>> window = found.windows["all"]
        >>> round(window.tau, 3), window.equivalent  # a constant is nearest to itself
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
    objective = copy.deepcopy(objective).to(encoder.device)  # the caller's stays where it is
    sums = []
    compared = []
    with restored_global_state(), torch.no_grad(), ExitStack() as after:
        torch.manual_seed(seed)
        after.callback(encoder.train, encoder.training)
        encoder.train()
        for start in range(0, len(sentences) - batch_size + 1, batch_size):
            features = encoder.preprocess(list(sentences[start : start + batch_size]))
            tensors = {
                name: value.to(encoder.device)
                for name, value in features.items()
                if isinstance(value, Tensor)
            }
            # (batch, dim) each
            views = [encoder(dict(tensors))["sentence_embedding"].float() for _ in range(2)]
            sums.append(pair_sums(objective, views, HIGH_SIMILARITY))
            compared.append(compare(objective, views))
    steps = PairSums(*map(_stacked, zip(*sums, strict=True)))
    comparison = ConstantComparison(
        *(_stacked(each).sum(0) for each in zip(*compared, strict=True))
    )
    lines = [{"step": i, **line} for i, line in enumerate(lines_of(steps, comparison), 1)]
    windows, negatives = windows_of(lines, "this audit")
    return Audit("sentences", str(objective), "sentences", negatives, windows)


def _stacked(of_batches: tuple[Tensor, ...]) -> Tensor:
    return torch.stack(of_batches).double().cpu()


def _window(parts: Sequence[_Part], lines: Sequence[Line]) -> Window:
    weights = [part.comparison["batches"] for part in parts]

    def mean(values: Sequence[Any]) -> Floats:
        return np.asarray(np.average(np.array(values, dtype=float), axis=0, weights=weights))

    first = parts[0].first
    last = parts[-1].last
    negatives = [line["negative"] for line in lines if first <= line["step"] <= last]
    taus = np.array(parts[0].comparison["tau"], dtype=float)
    moved = mean([part.comparison["moved"] for part in parts])
    tau, least = nearest_constant(taus, moved)
    # (constants, BINS)
    constants = mean([[part.shares(row) for row in part.comparison["constants"]] for part in parts])
    nearest = [np.interp(math.log(tau), np.log(taus), column) for column in constants.T]
    return Window(
        steps=(first, last),
        tau=tau,
        moved=least,
        pull=float(mean([part.comparison["pull"] for part in parts])),
        negative=float(np.mean([each for each in negatives if each is not None])),
        taus=taus,
        moved_by_constant=moved,
        rule=mean([part.shares(part.comparison["rule"]) for part in parts]),
        constant=np.array(nearest),
    )


def nearest_constant(taus: Floats, moved: Floats) -> tuple[float, float]:
    """Return the constant with the least moved share, and this share, between the constants that
    were tried.

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
    offsets = np.linspace(-1, 1, 2001)
    squares = np.polyval(through, offsets)
    best = int(np.argmin(squares))
    step = math.log(taus[1] / taus[0])
    tau = float(taus[least] * math.exp(offsets[best] * step))
    return tau, math.sqrt(max(0.0, float(squares[best])))


def in_words(audit: Audit) -> list[str]:
    """Return the audit in a few lines; the first one says what the rule amounts to."""
    window = audit.windows["all"]
    name = tau_in_words(window)
    moved = f"{100 * window.moved:.1f} % of the gradient"
    amounts = f"is no constant: the nearest is {name}, and {moved} must be moved"
    if window.moved < EQUIVALENT_MOVED:
        amounts = f"is the constant {name} to within {moved}"
    expected = "expected" if window.equivalent else "not expected"
    lines = [f"On these {audit.data} this rule {amounts}; it is {expected} to train like it."]
    if abs(window.pull - 1) >= EQUIVALENT_PULL:
        times = f"{window.pull:.2f} times that of its negatives"
        lines.append(f"The gradient of its positives is {times}; that of InfoNCE is 1.00 times.")
    return lines


def tau_in_words(window: Window) -> str:
    """Return the nearest constant, with a word if it is at an end of those that were tried."""
    ends = {float(window.taus[0]): " or less", float(window.taus[-1]): " or more"}
    return f"{window.tau:.4f}{ends.get(window.tau, '')}"


def table(audit: Audit) -> list[list[str]]:
    """Return the windows side by side, the header first."""
    lines = [["steps", "nearest constant", "moved", "along s", "pull", "mean s of negatives"]]
    for window in audit.windows.values():
        first, last = window.steps
        line = [
            f"{first:,} to {last:,}",
            tau_in_words(window),
            f"{100 * window.moved:.1f} %",
            f"{100 * window.along_axis:.1f} %",
            f"{window.pull:.2f}",
            f"{window.negative:.3f}",
        ]
        lines.append(line)
    return lines


def record_of(audit: Audit) -> dict[str, Any]:
    """Return the audit as ``audit.json`` holds it; ``edges`` are those of the bins of ``rule`` and
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
