"""The measures of an evaluation, each as a function of the encoder and the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dystress_text.core.vectors import unit_vectors
from vision.data.augment import CropAndFlip, SimclrAugment
from vision.data.crops import RandomCrop
from vision.data.loading import SMALL, Splits
from vision.data.strength import AT_IMAGENET_SCALE
from vision.data.views import RandomViews
from vision.evaluation.accuracy import Accuracy
from vision.evaluation.features import Transform, image_features, seeded, transform_of, view_features
from vision.evaluation.fine_tuning import FineTuningRecipe, FineTuningResult, fine_tune, score_classifier
from vision.evaluation.geometry import Geometry, measure_geometry
from vision.evaluation.knn import Weights, cosine_votes, l2_votes
from vision.evaluation.probe import Probe, augmented_probe, linear_probe
from vision.resnet import ImageEncoder, ImageInput


@dataclass(frozen=True)
class Subject:
    """An encoder and the images that it is evaluated on. Features are computed on first use.

    Attributes:
        encoder: on the device where the work is done.
        splits: the images.
        input: size, crop and normalisation of the images for the encoder.
        batch_size: images at a time.
        seed: of all that is drawn.
    """

    encoder: ImageEncoder
    splits: Splits
    input: ImageInput
    batch_size: int = 256
    seed: int = 0

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.splits.train.classes)

    @property
    def device(self) -> torch.device:
        """Where the work is done."""
        return next(self.encoder.parameters()).device

    @property
    def transform(self) -> Transform:
        """Preparation of images without augmentation."""
        return transform_of(self.input)

    @property
    def two_views(self) -> RandomViews:
        """Two views of each test image by SimCLR's augmentation as in the recipes: stronger and with blur at 224."""
        scale = AT_IMAGENET_SCALE if self.input.image_size > SMALL else {}
        augment = SimclrAugment(RandomCrop(self.input.image_size), self.input.mean, self.input.std, **scale)
        return RandomViews(self.splits.test, augment.to(self.device), 2, self.seed)

    @property
    def crop_and_flip(self) -> RandomViews:
        """A view of each training image for a classifier, whose colours do not change."""
        augment = CropAndFlip(RandomCrop(self.input.image_size), self.input.mean, self.input.std)
        return RandomViews(self.splits.train, augment.to(self.device), 1, self.seed)

    @cached_property
    def train(self) -> Tensor:
        """Backbone features of the training images, (n, feature_dim)."""
        return image_features(self.encoder, self.splits.train, self.transform, self.batch_size)

    @cached_property
    def test(self) -> Tensor:
        """Backbone features of the test images, (m, feature_dim)."""
        return image_features(self.encoder, self.splits.test, self.transform, self.batch_size)

    @cached_property
    def train_labels(self) -> Tensor:
        """(n,), on the device of the features."""
        assert self.splits.train.labels is not None  # checked by load_splits
        return self.splits.train.labels.to(self.train.device)

    @cached_property
    def test_labels(self) -> Tensor:
        """(m,), on the device of the features."""
        assert self.splits.test.labels is not None
        return self.splits.test.labels.to(self.test.device)


@dataclass(frozen=True)
class LinearResult(Accuracy):
    """A linear probe's figures.

    Attributes:
        probe: how it was trained: on ``augmented`` images or on ``fixed`` features.
    """

    probe: Probe


def nearest_neighbours(
    subject: Subject, k: int, temperature: float, l2_k: Sequence[int], l2_weights: Weights
) -> dict[str, Accuracy]:
    """Accuracies on normalised features, by the name of the classifier."""
    bank, queries = unit_vectors(subject.train), unit_vectors(subject.test)
    labels, truth, classes = subject.train_labels, subject.test_labels, subject.classes
    found = {f"{k}-NN": _counted(cosine_votes(bank, labels, queries, classes, k, temperature), truth, k)}
    for count in l2_k:
        votes = l2_votes(bank, labels, queries, classes, count, l2_weights)
        found[f"{count}-NN L2"] = _counted(votes, truth, count)
    return found


def _counted(votes: Tensor, truth: Tensor, k: int) -> Accuracy:
    accuracy = Accuracy.of(votes, truth)
    return accuracy if k >= 5 else replace(accuracy, top5=None)  # fewer than five classes have a vote


def linear(subject: Subject, epochs: int, probe: Probe | None) -> LinearResult:
    """The linear probe; None is the published one for pictures and the fast one for small images."""
    probe = probe or ("fixed" if subject.splits.train.pictures is None else "augmented")
    seed = subject.seed
    if probe == "fixed":
        scores = linear_probe(subject.train, subject.train_labels, subject.test, subject.classes, epochs, seed=seed)
    else:
        with seeded(seed, subject.device):
            scores = augmented_probe(subject.encoder, subject.crop_and_flip, subject.test, epochs, seed=seed)
    return LinearResult(**vars(Accuracy.of(scores, subject.test_labels)), probe=probe)


def geometry(subject: Subject) -> Geometry:
    """The geometry of the backbone's features of the test images; two encoders with one seed see the same views."""
    with seeded(subject.seed, subject.device):
        view1, view2 = view_features(subject.encoder, subject.two_views, subject.batch_size)
    return measure_geometry(subject.test, view1, view2, subject.test_labels)


def fine_tuning(subject: Subject, class_weights: Mapping[str, float], recipe: FineTuningRecipe) -> FineTuningResult:
    """Fine-tune on the training images, cropped and flipped at random, and score the test images."""
    splits = subject.splits
    with seeded(subject.seed, subject.device):
        model, loss = fine_tune(subject.encoder, subject.crop_and_flip, class_weights, recipe, subject.seed)
    return score_classifier(model, splits.test, subject.transform, loss, subject.batch_size)
