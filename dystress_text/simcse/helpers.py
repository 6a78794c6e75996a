"""What keeps a run from spoiling its model: a frozen guide, a frozen teacher, fewer dimensions, the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.core.distillation import Distillation
from dystress_text.core.gather import Gather
from dystress_text.core.guide import Guide, GuideRule
from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.frozen import FrozenEncoder, frozen_copy, load_frozen
from dystress_text.encoders.interpolation import interpolate
from dystress_text.errors import UserError
from dystress_text.simcse.corpus import TokenizedCorpus
from dystress_text.simcse.settings import TextSettings
from dystress_text.simcse.start import Start
from dystress_text.training.batches import Batch

BASE = "base"  # the name of a copy of the start

Tokenize = Callable[[FrozenEncoder], TokenizedCorpus]  # the training text in the tokens of an encoder


@dataclass(frozen=True)
class Frozen:
    """A frozen encoder and the training text in its own tokens.

    Attributes:
        encoder: on the device of the run.
        corpus: the same samples as the run's corpus, in the same order.
    """

    encoder: FrozenEncoder
    corpus: TokenizedCorpus


@dataclass(frozen=True)
class Helpers:
    """The helpers of a run; none by default.

    Attributes:
        guide: says which pairs are no negatives.
        guide_rule: from which of its similarities on.
        teacher: whose ranking is learned.
        distillation: how.
        dims: of the vectors, at which the loss is taken; () for all of them alone.
        base: the weights of the start, on the CPU, if a share of them is saved.
        alpha: the share of the trained weights in what is saved.
    """

    guide: Frozen | None = None
    guide_rule: GuideRule | None = None
    teacher: Frozen | None = None
    distillation: Distillation | None = None
    dims: tuple[int, ...] = ()
    base: Mapping[str, Tensor] = field(default_factory=dict)
    alpha: float = 1.0

    def load(self, indices: NDArray[np.int64], corpus: TokenizedCorpus) -> Batch:
        """The tokens of samples for guide and teacher, where they are not those of ``corpus``."""
        batch: Batch = {}
        for name, frozen in (("guide", self.guide), ("teacher", self.teacher)):
            if frozen is not None and frozen.corpus is not corpus and not (name == "teacher" and self._is_one):
                tokens = frozen.corpus.batch(indices)
                batch[f"{name}_ids"], batch[f"{name}_mask"] = tokens["token_ids"], tokens["attention_mask"]
        return batch

    def vectors(self, name: str, batch: Batch) -> tuple[Tensor, ...]:
        """The vectors of ``guide`` or ``teacher``, one tensor (n, dim) per column; () without it.

        They are kept in the batch, as the gradient cache asks twice.
        """
        frozen = self.guide if name == "guide" else self.teacher
        if frozen is None:
            return ()
        kept = "guide_vectors" if self._is_one else f"{name}_vectors"
        if kept not in batch:
            own = f"{name}_ids" in batch
            ids, mask = (f"{name}_ids", f"{name}_mask") if own else ("token_ids", "attention_mask")
            batch[kept] = frozen.encoder(batch[ids], batch[mask])
        return batch[kept].chunk(frozen.corpus.columns)

    @property
    def _is_one(self) -> bool:
        """Whether guide and teacher are one model."""
        return self.guide is not None and self.guide is self.teacher

    def guidance(self, vectors: tuple[Tensor, ...], gather: Gather) -> Guide | None:
        """What the guide says of its vectors of each view."""
        return None if self.guide_rule is None else self.guide_rule(vectors, gather)

    def draw_back(self, model: SentenceEncoder) -> None:
        """Give a trained model on the CPU the weights that are saved."""
        if self.base:
            model.load_state_dict(interpolate(self.base, model.state_dict(), self.alpha))


def build_helpers(
    text: TextSettings, start: Start, tokenize: Tokenize, by_sample: bool, device: torch.device, dtype: torch.dtype
) -> Helpers:
    """The helpers that the options ask for; call it before the first step.

    Args:
        text: the options.
        start: of the run.
        tokenize: the training text in the tokens of an encoder.
        by_sample: whether the run's temperature has a state for each sample.
        device: of the run.
        dtype: of the forward pass of guide and teacher.

    Raises:
        UserError: a model cannot be loaded, or the vectors have too few dimensions.
    """
    built: dict[str, Frozen] = {}

    def frozen(name: str, option: str) -> Frozen:
        if name not in built:
            base = name == BASE
            encoder = frozen_copy(start.model, start.tokenizer, start.has_head) if base else load_frozen(name, option)
            encoder = replace(encoder, dtype=dtype, packing=text.packing)
            encoder.network.to(device)
            built[name] = Frozen(encoder, tokenize(encoder))
        return built[name]

    dims, dim = tuple(text.matryoshka_dims or ()), int(start.model.transformer.config.hidden_size)
    if dims and max(dims) > dim:
        raise UserError(f"--matryoshka_dims: the vectors have {dim} dimensions, got {max(dims)}")
    if dims and by_sample:
        raise UserError("--matryoshka_dims: this temperature has a state for each sample, which takes one loss a batch")
    helpers = Helpers(dims=dims)
    if text.guide is not None:
        relative = text.guide_margin_strategy == "relative"
        rule = GuideRule(text.guide_threshold, text.guide_quantile, text.guide_margin, relative)
        helpers = replace(helpers, guide=frozen(text.guide, "--guide"), guide_rule=rule)
    if text.teacher is not None:
        lists = Distillation(
            str(text.teacher_loss),
            float(text.teacher_weight or 0),
            float(text.student_temperature or 0),
            float(text.teacher_temperature or 0),
        )
        helpers = replace(helpers, teacher=frozen(text.teacher, "--teacher"), distillation=lists)
    if text.interpolate is not None:
        state = {name: tensor.to("cpu", copy=True) for name, tensor in start.model.state_dict().items()}
        helpers = replace(helpers, base=state, alpha=text.interpolate)
    return helpers
