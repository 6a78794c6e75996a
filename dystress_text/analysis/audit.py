"""Find the constant temperature that trains most like a loss, from the lines of a similarity log.

The distance is that of :mod:`dystress_text.losses.diagnosis`: the total variation distance between
the distributions of the negatives' gradient over the pairs. All steps count the same.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.errors import ParameterError, UserError, lies_in
from dystress_text.io.paths import model_path
from dystress_text.losses.diagnosis import ConstantComparison, PairSums, compare, pair_sums
from dystress_text.losses.objectives import ContrastiveLoss, parse_loss
from dystress_text.training.global_state import restored_global_state
from dystress_text.training.similarity_log import HIGH_SIMILARITY, lines_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# a loss is expected to train like its nearest constant below both bounds
EQUIVALENT_DISTANCE = 0.10  # of the total variation distance
EQUIVALENT_RATIO = 0.10  # of the gradient ratio from 1

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Audit:
    """A loss compared with constant temperatures on a data set.

    Attributes:
        loss: the loss as a string, such as ``infonce(cosine(0.05, 0.07))``.
        data: ``sentences`` or ``images``.
        negatives: the number of negative pairs.
        tau: the nearest constant.
        total_variation: the distance to that constant, from 0 to 1.
        gradient_ratio: gradient of the positives divided by that of the negatives; 1 for InfoNCE.
        negative: the mean similarity of negative pairs.
        taus: the constants that were tried, (constants,).
        total_variations: the distance to each of these constants, (constants,).
    """

    loss: str
    data: str
    negatives: int
    tau: float
    total_variation: float
    gradient_ratio: float
    negative: float
    taus: list[float]
    total_variations: list[float]

    @property
    def equivalent(self) -> bool:
        """Whether a run with the nearest constant is expected to train like this loss."""
        is_usual_ratio = abs(self.gradient_ratio - 1) < EQUIVALENT_RATIO
        return self.total_variation < EQUIVALENT_DISTANCE and is_usual_ratio


def audit(
    model: SentenceTransformer | str | Path,
    sentences: Iterable[str],
    loss: ContrastiveLoss | str,
    batch_size: int = 64,
    seed: int = 42,
) -> Audit:
    """Compare a loss with constant temperatures on two dropout views of sentences.

    Nothing is trained.

    Args:
        model: a model, or its folder or name.
        sentences: at least a batch; an incomplete last batch is dropped.
        loss: an objective or its string.
        batch_size: sentences per batch. The other sentences of a batch are the negatives.
        seed: the seed of the dropout.

    Raises:
        UserError: the model cannot be loaded, the sentences are not texts, or too few for a batch,
            or the loss has no negatives.

    Examples:
        >>> texts = ["It rains.", "A dog ran home.", "The bank was closed.", "She sings."]
        >>> found = audit("bert-mini-wiki", texts, "infonce(0.05)", batch_size=4)
        >>> found.negatives  # the three others for each text
        12
        >>> round(found.tau, 3), found.equivalent  # a constant is nearest to itself
        (0.05, True)
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import batch_to_device

    from dystress_text.models.encoding import in_evaluation_mode
    from dystress_text.models.loading import readable

    texts = [sentences] if isinstance(sentences, str | None) else list(sentences)
    if not all(isinstance(text, str) for text in texts):
        raise ParameterError("sentences", "expected a list of texts")
    objective = parse_loss(loss) if isinstance(loss, str) else loss
    if not isinstance(objective, ContrastiveLoss):
        raise ParameterError("loss", f"expected a loss with negatives, got {objective}")
    if not lies_in(batch_size, "[2, inf)"):
        raise ParameterError("batch_size", f"must be in [2, inf), got {batch_size!r}")
    if len(texts) < batch_size:
        reason = f"{len(texts)} are fewer than a batch of {batch_size}; lower `batch_size`"
        raise ParameterError("sentences", reason)
    if not isinstance(model, SentenceTransformer):
        with readable(str(model)):
            model = SentenceTransformer(model_path(str(model)))
    model = in_evaluation_mode(model).train()  # the caller's keeps its mode
    objective = copy.deepcopy(objective).to(model.device)  # and its device
    sums = []
    compared = []
    with restored_global_state(), torch.no_grad():
        torch.manual_seed(seed)
        for start in range(0, len(texts) - batch_size + 1, batch_size):
            batch = model.preprocess(texts[start : start + batch_size])
            features = batch_to_device(batch, model.device)
            # (batch, dim) each
            views = [model(dict(features))["sentence_embedding"].float() for _ in range(2)]
            sums.append(pair_sums(objective, views, HIGH_SIMILARITY))
            compared.append(compare(objective, views))
    steps = PairSums(*map(_stacked, zip(*sums, strict=True)))
    total = ConstantComparison(*(_stacked(each).sum(0) for each in zip(*compared, strict=True)))
    return audit_log(lines_of(steps, total), "this audit", str(objective), "sentences")


def _stacked(of_batches: tuple[Tensor, ...]) -> Tensor:
    return torch.stack(of_batches).double().cpu()


def audit_log(lines: Sequence[Mapping[str, Any]], log: object, loss: str, data: str) -> Audit:
    """Compare a loss with constant temperatures, from the similarity log of a run with that loss.

    Args:
        lines: the lines of the log, in order.
        log: the name of the log, for errors.
        loss: the loss as a string.
        data: ``sentences`` or ``images``.

    Raises:
        UserError: the log has no comparison with constants.
    """
    ends = [line for line in lines if "total_variation" in line.get("comparison", {})]
    compared = [line["comparison"] for line in ends if line["comparison"]["batches"]]
    if not compared:
        raise UserError(f"{log} has no comparison with constants: train with `log_similarity`")
    batches = [each["batches"] for each in compared]
    distances = np.average([each["total_variation"] for each in compared], axis=0, weights=batches)
    ratios = [each["gradient_ratio"] for each in compared]
    taus = np.array(compared[0]["tau"])
    tau, least = nearest_constant(taus, distances)
    similarities = [line["negative"] for line in lines if line["negative"] is not None]
    return Audit(
        loss=loss,
        data=data,
        negatives=round(sum(sum(line["histograms"]["negatives"]) for line in ends)),
        tau=tau,
        total_variation=least,
        gradient_ratio=float(np.average(ratios, weights=batches)),
        negative=float(np.mean(similarities)),
        taus=taus.tolist(),
        total_variations=distances.tolist(),
    )


def nearest_constant(taus: Floats, distances: Floats) -> tuple[float, float]:
    """Return the constant temperature nearest to a loss, and its distance.

    The constant may lie between those tried. The distance is V-shaped in log tau for a loss with a
    constant temperature, and a rounded V for others, so its square is smooth: the minimum is that
    of a spline through the squares.

    Args:
        taus: the constants, at equal steps of their logarithm, (constants,).
        distances: the distance to each constant, (constants,).
    """
    from scipy.interpolate import CubicSpline  # slow to import

    between = np.geomspace(taus[0], taus[-1], 40_001)
    squares = CubicSpline(np.log(taus), distances**2)(np.log(between))
    best = int(np.argmin(squares))
    return float(between[best]), math.sqrt(max(0.0, float(squares[best])))


def summary(audit: Audit) -> str:
    """Return three lines about the audit; the first names the nearest constant."""
    ends = {audit.taus[0]: " or less", audit.taus[-1]: " or more"}
    tau = f"{audit.tau:.4f}{ends.get(audit.tau, '')}"
    expected = "expected" if audit.equivalent else "not expected"
    return (
        f"On these {audit.data} the nearest constant temperature is {tau}; "
        f"the loss is {expected} to train like it.\n"
        f"Total variation {100 * audit.total_variation:.1f} %, "
        f"gradient ratio {audit.gradient_ratio:.2f} (1.00 for InfoNCE).\n"
        f"Mean similarity of {audit.negatives:,} negatives: {audit.negative:.3f}; {audit.loss}"
    )
