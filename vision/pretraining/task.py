"""The tasks of pre-training: two views of each image, with MoCo's queue, or with a teacher."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dystress_text.errors import TrainingError, reason_of
from dystress_text.losses.objectives import ContrastiveLoss, Objective
from dystress_text.losses.vectors import at_least_fp32
from dystress_text.training.batches import Batch, Embeddings
from vision.data.views import RandomViews
from vision.pretraining.held_out import OnlineMeasure
from vision.pretraining.negative_free import PROTOTYPES
from vision.resnet import ImageEncoder, save_encoder

PREDICTOR_HIDDEN = 4096  # BYOL's


@dataclass(eq=False)
class PretrainTask:
    """A :class:`~dystress_text.training.task.Task` on two views of each image."""

    encoder: ImageEncoder  # on the device it trains on
    views: RandomViews
    objective: Objective
    # whether all views of one size share a forward pass, and so batch statistics
    one_pass: bool = False
    online: OnlineMeasure | None = None  # metrics of the encoder while it trains
    card: str = "Pre-trained."  # text for the saved folder's card

    @property
    def model(self) -> nn.Module:
        """Return the network to optimise: the encoder, which has a head in :class:`TeacherTask`."""
        return self.encoder

    @property
    def state(self) -> nn.Module:
        return self.objective

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        if isinstance(self.objective, ContrastiveLoss):
            self.objective.temperature.advance(epoch, run_fraction)

    def load(self, indices: NDArray[np.int64], step: int) -> Batch:
        return self.views.load(indices, step)

    def embed(self, model: nn.Module, batch: Batch) -> Embeddings:
        views = self.passes(self.views.on_device(batch))
        return Embeddings(model(*views).chunk(2))  # each (n, dim)

    def passes(self, views: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the batches of the forward passes for views of one size, (n, 3, size, size)."""
        if self.one_pass and views:
            return [torch.cat(list(views))]
        return views

    def loss(self, embeddings: Embeddings) -> Tensor:
        try:
            loss: Tensor = self.objective(*embeddings.views)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # not declared
            advice = "the embeddings cannot be whitened; lower `learning_rate`"
            raise TrainingError(f"{advice} ({reason_of(error)})") from error
        return loss

    def evaluate(self) -> Mapping[str, float]:
        if self.online is None:
            return {}
        return self.online(self.encoder)

    def save(self, folder: Path) -> None:
        save_encoder(self.encoder, folder, self.card)


@dataclass(eq=False, kw_only=True)
class MomentumTask(PretrainTask):
    """The base of MoCo, BYOL and DINO: a network without gradients follows the trained one."""

    momentum: float  # of the weights of the second network
    # the precision in which it runs, such as accelerate's ``autocast``
    autocast: Callable[[], AbstractContextManager[Any]]

    def __post_init__(self) -> None:
        self.key_encoder = copy.deepcopy(self.followed).requires_grad_(False)

    @property
    def followed(self) -> nn.Module:
        """Return the part of the trained network that the second one follows."""
        return self.encoder

    @property
    def state(self) -> nn.Module:
        return nn.ModuleDict({"objective": self.objective, "key_encoder": self.key_encoder})

    def momentum_at(self, run_fraction: float) -> float:
        """Return the momentum for a step after a fraction of the run."""
        return self.momentum

    @torch.no_grad()
    def begin_step(self, epoch: float, run_fraction: float) -> None:
        super().begin_step(epoch, run_fraction)
        keys: list[Tensor] = list(self.key_encoder.parameters())
        queries: list[Tensor] = list(self.followed.parameters())
        torch._foreach_lerp_(keys, queries, 1 - self.momentum_at(run_fraction))

    @torch.no_grad()
    def _follow(self, *views: Tensor) -> Tensor:
        """Return the output of the second network, in fp32 or better."""
        with self.autocast():
            keys: Tensor = self.key_encoder(*views)
        return at_least_fp32(keys)


@dataclass(eq=False, kw_only=True)
class QueueTask(MomentumTask):
    """MoCo v2: one view is the query, the other the key, and past keys are the negatives.

    A momentum encoder makes the keys. Keys and queries go through batch normalisation in separate
    passes. On several processes, synchronised statistics replace MoCo's shuffling. The usual
    momentum is 0.999 on ImageNet and 0.99 on CIFAR.
    """

    def embed(self, model: nn.Module, batch: Batch) -> Embeddings:
        query, key = self.views.on_device(batch)
        return Embeddings((model(query), self._follow(key)))


class HeadedEncoder(nn.Module):
    """An encoder with a training-only head, batches (n, 3, h, w) -> (all n, width of the head)."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, *images: Tensor) -> Tensor:
        return torch.cat([self.head(self.encoder(each)) for each in images])


@dataclass(eq=False, kw_only=True)
class TeacherTask(MomentumTask):
    """BYOL and DINO: a student with an additional head, and a teacher without gradients.

    The teacher sees only the first two views. Its momentum rises from ``momentum`` to 1 over the
    run, along half a cosine (Grill et al., 2020). The objective takes the outputs of the student
    for all views, then those of the teacher.
    """

    head: nn.Module  # of the student, after the encoder
    # DINO's teacher shares the prototypes; BYOL's has no predictor
    head_in_teacher: bool

    @cached_property
    def model(self) -> HeadedEncoder:
        return HeadedEncoder(self.encoder, self.head)

    @property
    def followed(self) -> nn.Module:
        return self.model if self.head_in_teacher else self.encoder

    def momentum_at(self, run_fraction: float) -> float:
        remaining = (1 + math.cos(math.pi * run_fraction)) / 2  # from 1 to 0
        return 1 - (1 - self.momentum) * remaining

    def embed(self, model: nn.Module, batch: Batch) -> Embeddings:
        views = self.views.on_device(batch)
        large = self.passes(views[:2])
        small = self.passes(views[2:])
        student = model(*large, *small).chunk(len(views))
        teacher = self._follow(*large).chunk(2)
        return Embeddings((*student, *teacher))  # each (n, width)


class Prototypes(nn.Module):
    """DINO's last layer, (n, dim) -> (n, count): cosines with learned vectors."""

    def __init__(self, dim: int, count: int = PROTOTYPES) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, dim))

    def forward(self, z: Tensor) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):  # the loss divides cosines by 0.04
            unit = F.normalize(at_least_fp32(z), dim=1)
            prototypes = F.normalize(self.weight, dim=1)
            return F.linear(unit, prototypes)
