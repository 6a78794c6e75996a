"""The linear probe: one layer on frozen features, by the schedule of the paper's ImageNet comparison.

The paper trains on augmented images; here the features of each image are computed once.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dystress_text.errors import UserError

EPOCHS = 90
BATCH_SIZE = 256
LEARNING_RATE = 0.1  # for 256 images a step; proportional to that number
MOMENTUM = 0.9


def linear_probe(
    train: Tensor,
    labels: Tensor,
    queries: Tensor,
    classes: int,
    epochs: int = EPOCHS,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> Tensor:
    """Scores of a linear classifier trained by SGD with momentum, cosine schedule and no weight decay.

    Features are first shifted by their mean and divided by one number, so that their entries have a mean square of 1
    over the training images. This does not change what a linear classifier can express, but one learning rate then
    suits all encoders, also those whose features differ little from their mean, such as untrained ones.

    Args:
        train: (n, dim) features.
        labels: (n,) classes from 0.
        queries: (m, dim) features to score.
        classes: their number.
        epochs: of training.
        batch_size: features a step; the learning rate is 0.1 times this over 256.
        seed: of the order. The caller's random state does not change.

    Returns:
        (m, classes) logits.

    Raises:
        UserError: there is only one class.
    """
    if len(torch.unique(labels)) < 2:
        raise UserError("--tasks linear: the training images are of one class only; a classifier needs two")
    mean = train.mean(0)
    x, y = train - mean, labels.to(train.device)
    deviation = torch.linalg.vector_norm(x) / math.sqrt(x.numel())
    # identical features leave rounding errors, which must not be scaled up
    scale = torch.where(deviation > 1e-6 * mean.abs().max(), 1 / deviation, 0)
    x *= scale
    weight = train.new_zeros(classes, train.shape[1], requires_grad=True)
    bias = train.new_zeros(classes, requires_grad=True)
    rate = LEARNING_RATE * batch_size / 256
    optimizer = torch.optim.SGD([weight, bias], lr=rate, momentum=MOMENTUM)
    steps, step = epochs * math.ceil(len(train) / batch_size), 0
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(train), generator=generator).to(train.device), batch_size):
            optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
            loss = F.cross_entropy(F.linear(x[rows], weight, bias), y[rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            step += 1
    with torch.no_grad():
        return F.linear((queries - mean) * scale, weight, bias)
