"""The measures of an evaluation, for one encoder and one set of images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dystress_text.losses.geometry import (
    alignment,
    interclass_uniformity,
    similarity_histograms,
    tolerance,
    uniformity,
)
from vision.data import AT_IMAGENET_SCALE
from vision.data.augment import CropAndFlip, SimclrAugment
from vision.data.crops import RandomCrop
from vision.data.images import DecodedImages, ImageSet
from vision.data.loading import SMALL
from vision.data.views import RandomViews
from vision.evaluation.features import image_features, view_features
from vision.evaluation.fine_tuning import score_classifier, train_classifier
from vision.evaluation.knn import accuracies, accuracy_by_class, cosine_votes
from vision.evaluation.probe import augmented_probe, balanced_svm, linear_probe
from vision.evaluation.settings import NEIGHBOURS, ImageEvaluationSettings
from vision.resnet import ImageEncoder


@dataclass(frozen=True)
class Subject:
    """An encoder and the labelled images that it is evaluated on, with a method for each task.

    Features are computed on first use. Tasks draw from torch's random state.
    """

    encoder: ImageEncoder  # on the device to use
    train: ImageSet  # the bank of the nearest neighbours, and the training images of classifiers
    test: ImageSet
    settings: ImageEvaluationSettings
    weights: Tensor  # (classes,), for fine-tuning

    def knn(self) -> dict[str, Any]:
        """Return the accuracy of the nearest neighbours by cosine."""
        k = self.settings.k or min(NEIGHBOURS, len(self.train))
        classes = len(self.train.classes)
        votes = cosine_votes(self.bank, self.labels, self.queries, classes, k)
        # a class without a vote is not predicted
        figures = self.accuracies(votes.masked_fill(votes == 0, -math.inf))
        if k < 5:  # neighbours of fewer than five classes
            figures["top5"] = None
        return {"k": k, **figures}

    def linear(self) -> dict[str, Any]:
        """Return the accuracy of a linear probe.

        By default it trains on augmented images; if images are in memory, on fixed features.
        """
        settings = self.settings
        epochs = settings.probe_epochs
        seed = settings.seed
        usual = "fixed" if isinstance(self.train, DecodedImages) else "augmented"
        probe = settings.probe or usual
        if probe == "fixed":
            classes = len(self.train.classes)
            scores = linear_probe(self.bank, self.labels, self.queries, classes, epochs, seed)
        else:
            views = self.crop_and_flip
            scores = augmented_probe(
                self.encoder, views, self.queries, epochs, seed, settings.batch_size
            )
        return {**self.accuracies(scores), "probe": probe}

    def svm(self) -> dict[str, Any]:
        """Return the accuracy of a linear SVM on a balanced part of the training images."""
        predicted, images = balanced_svm(self.bank, self.labels, self.queries, self.settings.seed)
        truth = self.test.targets
        return {
            "top1": 100 * (predicted == truth).double().mean().item(),
            "images": images,
            "by_class": accuracy_by_class(predicted, truth, self.train.classes),
        }

    def geometry(self) -> dict[str, Any]:
        """Measure the features of the test images, as :mod:`dystress_text.losses.geometry` does.

        Figures that need more images or classes are left out.
        """
        settings = self.settings
        image_input = self.encoder.input
        side = image_input.image_size
        scale = AT_IMAGENET_SCALE if side > SMALL else {}  # as in the recipes
        augment = SimclrAugment(RandomCrop(side), image_input.mean, image_input.std, **scale)
        views = RandomViews(self.test, augment, 2, settings.seed)
        view1, view2 = view_features(self.encoder, views, settings.batch_size)
        truth = self.test.targets.to(self.encoder.device)
        sizes = torch.bincount(truth)
        figures = {"alignment": alignment(view1, view2)}
        if len(truth) > 1:
            figures["uniformity"] = uniformity(self.queries)
        if sizes.count_nonzero() > 1:
            figures["interclass_uniformity"] = interclass_uniformity(self.queries, truth)
        if sizes.max() > 1:
            figures["tolerance"] = tolerance(self.queries, truth)
        pairs = similarity_histograms(view1, view2, truth)
        figures |= pairs._asdict()  # edges, and counts by kind of pair
        return {name: figure.tolist() for name, figure in figures.items()}

    def transfer(self) -> dict[str, Any]:
        """Return the accuracy after fine-tuning on crops and flips of the training images."""
        settings = self.settings
        model, loss = train_classifier(
            self.encoder,
            self.crop_and_flip,
            self.weights,
            settings.transfer_epochs,
            settings.seed,
            settings.batch_size,
        )
        figures = score_classifier(model, self.test, settings.batch_size)
        return {**figures, "last_loss": loss}

    def accuracies(self, scores: Tensor) -> dict[str, Any]:
        """Return the accuracies of scores (m, classes) of the test images."""
        return accuracies(scores, self.test.targets, self.train.classes)

    @property
    def crop_and_flip(self) -> RandomViews:
        """Return the views to train a classifier on: a random crop and flip of each image."""
        image_input = self.encoder.input
        augment = CropAndFlip(RandomCrop(image_input.image_size), image_input.mean, image_input.std)
        return RandomViews(self.train, augment, 1, self.settings.seed)

    @property
    def labels(self) -> Tensor:
        """Return the labels of the training images, (n,)."""
        return self.train.targets.to(self.encoder.device)

    @cached_property
    def bank(self) -> Tensor:
        """Return the backbone features of the training images, (n, feature_dim)."""
        return image_features(self.encoder, self.train, self.settings.batch_size)

    @cached_property
    def queries(self) -> Tensor:
        """Return the backbone features of the test images, (m, feature_dim)."""
        return image_features(self.encoder, self.test, self.settings.batch_size)
