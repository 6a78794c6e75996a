"""kNN accuracy of an encoder during training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vision.data.images import ImageSet
from vision.evaluation.accuracy import Accuracy
from vision.evaluation.features import Transform, image_features
from vision.evaluation.knn import cosine_votes
from vision.resnet import ImageEncoder


@dataclass(frozen=True)
class OnlineKnn:
    """The paper's weighted kNN on the backbone's features: a bank of training images votes on test images.

    Attributes:
        bank: labelled training images.
        queries: labelled test images.
        transform: of uint8 images to what the encoder takes.
        k: neighbours.
        dtype: of the encoder's products.
    """

    bank: ImageSet
    queries: ImageSet
    transform: Transform
    k: int
    dtype: torch.dtype = torch.float32

    @property
    def metric(self) -> str:
        """The name of the accuracy, such as ``knn200``."""
        return f"knn{self.k}"

    def __call__(self, encoder: ImageEncoder) -> dict[str, float]:
        bank, queries = (
            image_features(encoder, images, self.transform, dtype=self.dtype) for images in (self.bank, self.queries)
        )
        assert self.bank.labels is not None
        assert self.queries.labels is not None
        labels = self.bank.labels.to(bank.device)
        votes = cosine_votes(bank, labels, queries, len(self.bank.classes), self.k)
        return {self.metric: Accuracy.of(votes, self.queries.labels).top1}
