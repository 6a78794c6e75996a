"""Fine-tuning: its first step by hand, what it learns, and its figures."""

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
from vision_cases import as_float, colour_images, tiny_encoder, whole

from vision.evaluation import fine_tuning
from vision.evaluation.fine_tuning import (
    new_classifier,
    parse_class_weights,
    rate_of,
    score_classifier,
    train_classifier,
    weights_of,
)


@pytest.mark.parametrize(("classes", "rate"), [(3, 0.1), (2, 1.0)])
def test_a_step_is_gradient_descent_on_the_weighted_loss(classes, rate):
    encoder = tiny_encoder()
    train = colour_images(12, classes)
    weights = weights_of({"b": 2.45}, train.classes)
    model, loss = train_classifier(encoder, whole(train), weights, 1, seed=5)

    truth = new_classifier(encoder, classes, seed=5).train()
    log_odds = truth(as_float(train.pixels)).double()
    if classes == 2:
        log_odds = torch.cat([torch.zeros_like(log_odds), log_odds], 1)
    each = weights[train.labels]
    terms = -log_odds.log_softmax(1)[torch.arange(12), train.labels] * each
    expected = terms.sum() / (each.sum() if classes == 3 else 12)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    for old, new in zip(truth.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(new, old - rate * old.grad, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("encoded_at_once", [1, 3, 5])
def test_parts_of_a_step_add_up_to_its_gradient(classes, encoded_at_once, monkeypatch):
    """Without batch statistics; of 11 images, so that no part size divides them."""
    monkeypatch.setattr(torch.nn.BatchNorm2d, "train", lambda self, mode=True: self)
    encoder = tiny_encoder()
    for module in encoder.modules():
        module.training = False
    train = colour_images(11, classes)
    weights = weights_of({"b": 2.45}, train.classes)
    model, loss = train_classifier(encoder, whole(train), weights, 2, 5, encoded_at_once)
    expected, whole_loss = train_classifier(encoder, whole(train), weights, 2, 5)
    assert loss == pytest.approx(whole_loss, rel=1e-4)
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_the_rate_falls_twice():
    rates = [rate_of(epoch, 50, 3) for epoch in (0, 29, 30, 39, 40)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])


def test_it_learns_and_its_figures_are_scikit_learns(monkeypatch):
    monkeypatch.setattr(fine_tuning, "BATCH_SIZE", 8)
    monkeypatch.setattr(fine_tuning, "rate_of", lambda *_: 0.05)
    train = colour_images(60, 2)
    test = colour_images(31, 2, seed=1)
    model, _ = train_classifier(tiny_encoder(), whole(train), torch.ones(2), 5)
    found = score_classifier(model, test, batch_size=7)
    assert found["top1"] > 90
    with torch.no_grad():
        logits = model.eval()(as_float(test.pixels))
    predicted = logits[:, 0] > 0
    assert found["top1"] == pytest.approx(100 * accuracy_score(test.labels, predicted))
    balanced = balanced_accuracy_score(test.labels, predicted)
    assert found["balanced_accuracy"] == pytest.approx(100 * balanced)
    assert found["auc"] == pytest.approx(100 * roc_auc_score(test.labels, logits[:, 0]))


@pytest.mark.parametrize("given", [["mhist"], ["SSA=2.45"]])
def test_weights_follow_the_names_of_classes(given):
    weights = weights_of(parse_class_weights(given), ("HP", "SSA"))
    assert weights.tolist() == pytest.approx([1.0, 2.45])
