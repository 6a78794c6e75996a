"""Fine-tuning: its schedule, its first step by hand, what it learns and what it leaves alone."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from encoder_cases import as_float, colour_images, tiny_encoder
from scipy.special import log_softmax
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from vision.evaluation.features import evaluating
from vision.evaluation.fine_tuning import (
    Classifier,
    FineTuningRecipe,
    classification_loss,
    fine_tune,
    parse_class_weights,
    score_classifier,
    weights_of,
)  # fmt: skip


class Whole:
    """Views that are the images themselves."""

    def __init__(self, images):
        self.images = images

    def batches(self, batch_size, device, step, order):
        for rows in torch.split(order, batch_size):
            yield rows, [as_float(self.images.images[rows])]


SHORT = FineTuningRecipe(epochs=4, batch_size=16)


@pytest.mark.parametrize(("classes", "weights"), [(3, {"b": 3.0, "c": 0.5}), (2, {"b": 2.45}), (2, {"a": 2.45})])
def test_a_step_is_plain_gradient_descent_on_the_weighted_loss(classes, weights):
    encoder, train = tiny_encoder(), colour_images(12, classes)
    recipe = FineTuningRecipe(epochs=1, batch_size=12)
    model, loss = fine_tune(encoder, Whole(train), weights, recipe, seed=5)

    truth = Classifier(encoder, classes, seed=5).train()
    log_odds = truth(as_float(train.images)).double()
    each = torch.tensor([weights.get("abc"[label], 1.0) for label in train.labels.tolist()])
    if classes == 2:
        log_odds = torch.cat([torch.zeros_like(log_odds), log_odds], 1)
    terms = -log_odds.log_softmax(1)[torch.arange(12), train.labels] * each
    expected = terms.sum() / (each.sum() if classes == 3 else 12)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    rate = 0.1 if classes == 3 else 1.0
    for (name, parameter), stepped in zip(truth.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(stepped, parameter - rate * parameter.grad, rtol=1e-3, atol=2e-4, msg=name)


@pytest.mark.parametrize("classes", [2, 3])
def test_it_learns_and_its_figures_are_scikit_learns(classes):
    train, test = colour_images(60, classes), colour_images(31, classes, seed=1)
    model, _ = fine_tune(tiny_encoder(), Whole(train), {}, FineTuningRecipe(8, 8, learning_rate=0.05))
    found = score_classifier(model, test, as_float, batch_size=7)
    assert found["accuracy"]["top1"] > 90
    with evaluating(model), torch.no_grad():
        logits = model(as_float(test.images))
    if classes == 3:
        assert found["accuracy"]["top1"] == pytest.approx(
            100 * (logits.argmax(1) == test.labels).double().mean().item()
        )
        assert (found["balanced_accuracy"], found["auc"]) == (None, None)
    else:
        predicted = (logits[:, 0] > 0).long()
        assert found["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(test.labels, predicted))
        assert found["auc"] == pytest.approx(100 * roc_auc_score(test.labels, logits[:, 0]))
        assert found["auc"] == pytest.approx(100 * roc_auc_score(1 - test.labels, -logits[:, 0]))  # the other class's


def shared_loss(class_weights, classes, logits, labels):
    return classification_loss(logits, labels, weights_of(class_weights, classes).double()).item()


def test_the_loss_of_several_classes_is_the_weighted_mean_whatever_their_order():
    weights = {"normal": 1.264, "serrated": 1.667, "adenocarcinoma": 1.0, "adenoma": 2.114}
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (20,), generator=generator)
    each = np.array(list(weights.values()))[labels]
    truth = -(each * log_softmax(logits.numpy(), axis=1)[np.arange(20), labels]).sum() / each.sum()
    for order in (sorted(weights), list(weights)):  # as folders, and as the data set's files number them
        columns = [list(weights).index(name) for name in order]
        placed = torch.tensor([columns.index(label) for label in labels.tolist()])
        found = shared_loss(parse_class_weights(["chaoyang"]), order, logits[:, columns], placed)
        assert found == pytest.approx(truth, rel=1e-7)  # the weights are float32


@pytest.mark.parametrize("positive", [1, 0])
def test_of_two_classes_the_named_one_is_weighed_whichever_comes_first(positive):
    classes = ("HP", "SSA") if positive else ("SSA", "hyperplastic")
    logits = torch.tensor([[0.3], [-1.2], [2.0]], dtype=torch.float64)  # of the second class
    labels = torch.tensor([1, 1, 0])
    p = [1 / (1 + math.exp(-value)) for value in logits.flatten().tolist()]
    weigh = {0: 2.45, 1: 1.0} if positive == 0 else {0: 1.0, 1: 2.45}
    truth = -(weigh[1] * math.log(p[0]) + weigh[1] * math.log(p[1]) + weigh[0] * math.log(1 - p[2])) / 3
    assert shared_loss(parse_class_weights(["mhist"]), classes, logits, labels) == pytest.approx(truth, rel=1e-7)
    if positive:  # and it is torch's pos_weight
        theirs = F.binary_cross_entropy_with_logits(
            logits[:, 0], labels.double(), pos_weight=torch.tensor(2.45, dtype=torch.float64)
        )
        assert theirs.item() == pytest.approx(truth, rel=1e-12)
