"""Which step, and which share of its weights, is judged: those with the most points on the sentences that choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.adaptation.measures import Measured, measure
from dystress_text.adaptation.probes import Probes
from dystress_text.adaptation.verdict import Bars, merit
from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.interpolation import interpolate
from dystress_text.evaluation.sts import Embed

METRIC = "points_without_labels"


@dataclass
class Chooser:
    """Implements :class:`dystress_text.evaluation.evaluators.Evaluator` with questions that need no labels.

    Attributes:
        probes: on the sentences that choose, none of which judges.
        bars: of the verdict.
        base: what the base answers; set before the first call.
    """

    probes: Probes
    bars: Bars
    base: Measured | None = None
    name: str = "sentences that choose"
    best_metrics: Sequence[str] = (METRIC,)

    def __call__(self, embed: Embed) -> Mapping[str, float]:
        assert self.base is not None
        return {METRIC: merit(self.base, measure(self.probes, embed), self.bars)}


@dataclass(frozen=True)
class Loaded:
    """A model from a folder.

    Attributes:
        model: the encoder.
        tokenizer: its own.
    """

    model: SentenceEncoder
    tokenizer: PreTrainedTokenizerBase

    def encode(self, sentences: Sequence[str], progress: bool = True) -> Tensor:
        """Vectors (n, dim) in fp32 on the CPU."""
        vectors = self.model.encode(sentences, self.tokenizer, progress=progress)
        assert isinstance(vectors, Tensor)
        return vectors


@torch.no_grad()
def choose_share(base: Loaded, tuned: Loaded, alphas: Sequence[float], chooser: Chooser) -> dict[float, float]:
    """Give a trained model the share of its weights that has the most points; of equal ones the smallest share.

    Args:
        base: where training began.
        tuned: of the same form; gets the chosen weights.
        alphas: the shares, in (0, 1].
        chooser: tells points.

    Returns:
        The points of each share, the chosen one first.
    """
    start, trained = base.model.state_dict(), {n: t.clone() for n, t in tuned.model.state_dict().items()}
    points: dict[float, float] = {}
    for alpha in sorted(alphas):
        tuned.model.load_state_dict(interpolate(start, trained, alpha))
        points[alpha] = chooser(tuned.encode)[METRIC]
    chosen = max(points, key=lambda alpha: (not math.isnan(points[alpha]), points[alpha]))
    tuned.model.load_state_dict(interpolate(start, trained, chosen))
    return {chosen: points[chosen], **points}
