"""Unsupervised SimCSE as a task for the engine: two dropout views of each sentence, any objective and temperature."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dystress_text.batches import Batch
from dystress_text.core.gather import Gather
from dystress_text.core.objectives import (
    ContrastiveLoss,
    DCLLoss,
    DCLWLoss,
    InfoNCELoss,
    MACLLoss,
    NTXentLoss,
)
from dystress_text.core.registry import TEMPERATURES, Temperature, make_temperature, temperature_parameters
from dystress_text.core.temperature import ProfileTemperature
from dystress_text.corpus import TokenizedCorpus
from dystress_text.distributed import is_sharded
from dystress_text.encoder import SentenceEncoder
from dystress_text.errors import UserError
from dystress_text.settings import OBJECTIVES, LossSettings
from dystress_text.sts import StsPairs, StsResult, evaluate_sts

TEXT_RANGE = {"tau_min": 0.05, "tau_max": 0.07}  # the paper's best STS row
TEXT_SCHEDULE = {"unit": "run", "half_period": 0.1}  # five swings a run: fine-tuning has one epoch, not hundreds

_TEMPERATURE_OPTIONS = (
    "temp", "tau_min", "tau_max", "shift", "scale", "sharpness", "half_period", "unit", "tau_0", "alpha", "a_0",
)  # fmt: skip


def build_temperature(settings: LossSettings) -> Temperature:
    """The temperature that the settings describe.

    Raises:
        UserError: unknown name, an option that this temperature does not take, or a value out of range.
    """
    name = settings.temperature
    if name is None:
        default = "alignment_adaptive" if settings.objective == "macl" else "shifted_cosine"
        name = default if settings.temp is None else "constant"
    given = {key: getattr(settings, key) for key in _TEMPERATURE_OPTIONS if getattr(settings, key) is not None}
    try:
        known = temperature_parameters(name)
        options = {"temp" if key == "tau" else key: key for key in known}  # option -> constructor parameter
        for key in given:
            if key not in options:
                raise UserError(f"--{key}: temperature {name!r} takes {', '.join(f'--{o}' for o in options)} only")
        parameters = {options[key]: value for key, value in given.items()}
        defaults: dict[str, Any] = {}
        if issubclass(TEMPERATURES[name], ProfileTemperature):
            defaults = TEXT_RANGE
        elif name == "scheduled" and parameters.get("unit", "run") == "run":
            defaults = TEXT_RANGE | TEXT_SCHEDULE
        parameters = {key: value for key, value in defaults.items() if key in known} | parameters
        return make_temperature(name, **parameters)
    except ValueError as error:
        raise UserError(f"--temperature {name}: {_option_names(str(error))}") from error


def _option_names(message: str) -> str:
    """A constructor's message with its leading parameter written as the option that it is."""
    first, _, rest = message.partition(" ")
    option = "temp" if first == "tau" else first
    return f"--{option} {rest}" if option in _TEMPERATURE_OPTIONS else message


def build_objective(settings: LossSettings, gather: Gather | None = None) -> ContrastiveLoss:
    """The objective that the settings describe, with its temperature.

    Raises:
        UserError: unknown objective, or options that do not fit.
    """
    common: dict[str, Any] = {"detach_temperature": settings.detach_temperature, "gather": gather}
    if settings.sigma is not None and settings.objective != "dclw":
        raise UserError(f"--sigma: objective {settings.objective!r} has none; dclw does")
    temperature = build_temperature(settings)
    match settings.objective:
        case "infonce":
            return InfoNCELoss(temperature, **common)
        case "ntxent":
            return NTXentLoss(temperature, **common)
        case "dcl":
            return DCLLoss(temperature, **common)
        case "dclw":
            try:
                return DCLWLoss(temperature, 0.5 if settings.sigma is None else settings.sigma, **common)
            except ValueError as error:
                raise UserError(f"--sigma: {error}") from error
        case "macl":
            return MACLLoss(temperature=temperature, **common)
    raise UserError(f"--objective: unknown objective {settings.objective!r}; known are {', '.join(OBJECTIVES)}")


class SimcseTask:
    """Implements :class:`dystress_text.engine.Task` for sentences.

    Args:
        model: the encoder.
        tokenizer: its tokenizer.
        corpus: the training sentences.
        objective: the loss.
        dev: pairs to evaluate on, or None for no evaluation.
        packing: compute nothing for padding, where the encoder allows that (BERT, RoBERTa and their kin).
    """

    def __init__(
        self,
        model: SentenceEncoder,
        tokenizer: PreTrainedTokenizerBase,
        corpus: TokenizedCorpus,
        objective: ContrastiveLoss,
        dev: StsPairs | None = None,
        packing: bool = True,
    ) -> None:
        self.model = model
        self.packing = packing and model.can_pack
        self.tokenizer = tokenizer
        self.corpus = corpus
        self.objective = objective
        self.dev = dev
        self.positions = 0
        self.tokens = 0

    @property
    def padding_share(self) -> float:
        """The share of positions so far that were padding."""
        return 1 - self.tokens / max(self.positions, 1)

    def load(self, indices: NDArray[np.int64]) -> Batch:
        batch = self.corpus.batch(indices)
        self.positions += batch["attention_mask"].numel()
        self.tokens += len(batch["places"])
        return batch

    def embed(self, model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        # both views in one pass, through the prepared model's forward: precision and gradient averaging hook in there
        ids, mask = (batch[name].repeat(2, 1) for name in ("input_ids", "attention_mask"))  # (2n, length)
        packing = self.packing and not is_sharded(model)  # packed arithmetic uses the layers' weights, not the layers
        places = torch.cat([batch["places"], batch["places"] + batch["input_ids"].numel()]) if packing else None
        first, second = model(ids, mask, places).chunk(2)  # each (n, dim)
        return first, second

    def loss(self, embeddings: tuple[Tensor, ...]) -> Tensor:
        return cast(Tensor, self.objective(*embeddings))

    def evaluate(self) -> dict[str, float]:
        if self.dev is None:
            return {}
        return metrics(self.dev, evaluate_sts(self.dev, self.encode))

    def encode(self, sentences: Any) -> Tensor:
        """Vectors of sentences as evaluation uses them."""
        vectors = self.model.encode(sentences, self.tokenizer)
        assert isinstance(vectors, Tensor)
        return vectors

    def save(self, folder: Path) -> None:
        self.model.save(folder, self.tokenizer)


def metrics(pairs: StsPairs, result: StsResult) -> dict[str, float]:
    """A result as metrics named after its set."""
    return {f"{pairs.slug}_{key}": value for key, value in vars(result).items()}
