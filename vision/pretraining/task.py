"""Pre-training of an image encoder as a task for the engine: two views, or MoCo's queue."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.rows import at_least_fp32
from dystress_text.errors import TrainingError
from dystress_text.training.batches import Batch
from dystress_text.training.embeddings import Embeddings
from vision.data.images import ImageSet
from vision.resnet import ImageEncoder, save_encoder

Evaluate = Callable[[ImageEncoder], Mapping[str, float]]


class Autocast(Protocol):
    """Makes the context in which networks run; accelerate's ``autocast`` is one."""

    def __call__(self) -> torch.autocast: ...


@dataclass(eq=False)
class PretrainTask:
    """Implements :class:`~dystress_text.training.task.Task` for images: two views of each, in one forward pass.

    Images that lie in memory go to the encoder's device once, as uint8; others are decoded batch by batch.

    Args:
        encoder: on the device it trains on.
        images: what it trains on.
        augment: makes a view of uint8 images (n, 3, h, w); called twice a batch, on the device.
        objective: the loss.
        online: metrics of the encoder while it trains, or None.
        card: goes into the saved folder's card.

    Attributes:
        model: what the optimiser trains: the encoder, with whatever else a subclass gives it.
    """

    views_in_one_pass: ClassVar[int] = 2

    encoder: ImageEncoder
    images: ImageSet
    augment: nn.Module
    objective: nn.Module
    online: Evaluate | None = None
    card: str = ""

    def __post_init__(self) -> None:
        self._decoders = ThreadPoolExecutor(thread_name_prefix="decode")
        self.model: nn.Module = self.encoder
        device = next(self.encoder.parameters()).device
        self._on_device = None if self.images.images is None else self.images.images.to(device)  # (n, 3, h, w) uint8

    @property
    def state(self) -> nn.Module:
        return self.objective

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        if isinstance(self.objective, ContrastiveLoss):
            self.objective.temperature.advance(epoch, run_fraction)

    def load(self, indices: NDArray[np.int64]) -> Batch:
        if self._on_device is not None:
            return {"index": torch.from_numpy(indices)}
        return {"images": torch.stack(list(self._decoders.map(self.images.image, indices.tolist())))}

    def embed(self, model: nn.Module, batch: Batch) -> Embeddings:
        return Embeddings(model(self._two_views(batch)).chunk(2))  # each (n, dim)

    def _two_views(self, batch: Batch) -> Tensor:
        """(2 n, 3, size, size): the first view of each image, then the second of each."""
        images = self._images(batch)
        return torch.cat([self.augment(images), self.augment(images)])

    def _images(self, batch: Batch) -> Tensor:
        return batch["images"] if self._on_device is None else self._on_device[batch["index"]]

    def loss(self, embeddings: Embeddings) -> Tensor:
        try:
            loss: Tensor = self.objective(*embeddings.views)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # torch does not declare it
            reason = " ".join(str(error).split())
            raise TrainingError(f"the embeddings cannot be whitened; lower --learning_rate ({reason})") from error
        return loss

    def evaluate(self) -> Mapping[str, float]:
        return {} if self.online is None else self.online(self.encoder)

    def save(self, folder: Path) -> None:
        if isinstance(self.objective, ContrastiveLoss):
            self.objective.temperature.keep()
        save_encoder(self.encoder, folder, self.card)


@dataclass(eq=False, kw_only=True)
class MomentumTask(PretrainTask):
    """A task with a second network, which takes no gradient and follows the trained one: MoCo's, BYOL's, DINO's.

    Args:
        momentum: of the follower's weights.
        autocast: the precision of the follower.
        **others: as for :class:`PretrainTask`.

    Attributes:
        key_encoder: the follower, which starts as a copy of what it follows.
    """

    momentum: float
    autocast: Autocast

    def __post_init__(self) -> None:
        super().__post_init__()
        self.key_encoder = copy.deepcopy(self.followed).requires_grad_(False)

    @property
    def followed(self) -> nn.Module:
        """The part of the trained network that has a follower."""
        return self.encoder

    @property
    def state(self) -> nn.Module:
        return nn.ModuleDict({"objective": self.objective, "key_encoder": self.key_encoder})

    def momentum_at(self, run_fraction: float) -> float:
        """The momentum of a step that has this fraction of the run behind it."""
        return self.momentum

    @torch.no_grad()
    def begin_step(self, epoch: float, run_fraction: float) -> None:
        super().begin_step(epoch, run_fraction)
        keys: list[Tensor] = list(self.key_encoder.parameters())
        queries: list[Tensor] = list(self.followed.parameters())
        torch._foreach_lerp_(keys, queries, 1 - self.momentum_at(run_fraction))

    @torch.no_grad()
    def _follow(self, views: Tensor) -> Tensor:
        """The follower's output, in fp32 at least."""
        with self.autocast():
            keys: Tensor = self.key_encoder(views)
        return at_least_fp32(keys)


@dataclass(eq=False, kw_only=True)
class QueueTask(MomentumTask):
    """MoCo v2: one view is the query, a momentum encoder makes the other's key, past keys are the negatives.

    Keys and queries go through batch normalisation apart. On several processes, synchronised statistics take the place
    of MoCo's shuffling. The momentum is 0.999 on ImageNet, 0.99 on CIFAR.
    """

    views_in_one_pass: ClassVar[int] = 1

    def embed(self, model: nn.Module, batch: Batch) -> Embeddings:
        images = self._images(batch)
        query = model(self.augment(images))
        return Embeddings((query, self._follow(self.augment(images))))
