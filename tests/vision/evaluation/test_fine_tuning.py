"""Fine-tuning: its schedule, its first step by hand, what it learns and what it leaves alone."""

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
from vision_cases import HALF, as_float, colour_images, tiny_encoder, whole

from vision.evaluation import fine_tuning
from vision.evaluation.fine_tuning import (
    fine_tune,
    new_classifier,
    parse_class_weights,
    score_classifier,
    weights_of,
)


@pytest.mark.parametrize(
    ("classes", "weights", "part"),
    [
        (3, {"b": 3.0, "c": 0.5}, 128),
        (2, {"a": 2.45}, 128),
        (2, {"b": 2.45}, 5),
    ],
)
def test_a_step_is_gradient_descent_on_the_weighted_loss(classes, weights, part):
    """In parts that are encoded apart, too."""
    encoder, train = tiny_encoder(), colour_images(12, classes)
    given = weights_of(weights, train.classes)
    model, loss = fine_tune(encoder, whole(train), given, 1, seed=5, encoded_at_once=part)

    truth = new_classifier(encoder, classes, seed=5).train()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(5))
    parts = [truth(as_float(train.pixels[rows])) for rows in order.split(part)]
    labels, log_odds = train.labels[order], torch.cat(parts).double()
    each = torch.tensor([weights.get("abc"[label], 1.0) for label in labels.tolist()])
    if classes == 2:
        log_odds = torch.cat([torch.zeros_like(log_odds), log_odds], 1)
    terms = -log_odds.log_softmax(1)[torch.arange(12), labels] * each
    expected = terms.sum() / (each.sum() if classes == 3 else 12)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    rate = 0.1 if classes == 3 else 1.0
    for (name, parameter), stepped in zip(
        truth.named_parameters(), model.parameters(), strict=True
    ):
        torch.testing.assert_close(
            stepped, parameter - rate * parameter.grad, rtol=1e-3, atol=2e-4, msg=name
        )


@pytest.mark.parametrize("classes", [2, 3])
def test_it_learns_and_its_figures_are_scikit_learns(classes, monkeypatch):
    monkeypatch.setattr(fine_tuning, "BATCH_SIZE", 8)
    train, test = colour_images(60, classes), colour_images(31, classes, seed=1)
    model, _ = fine_tune(tiny_encoder(), whole(train), torch.ones(classes), 8, 0.05)
    found = score_classifier(model, test, HALF, batch_size=7)
    assert found["top1"] > 90
    with torch.no_grad():
        logits = model.eval()(as_float(test.pixels))
    predicted = logits.argmax(1) if classes == 3 else (logits[:, 0] > 0).long()
    assert found["top1"] == pytest.approx(100 * accuracy_score(test.labels, predicted))
    if classes == 2:
        assert found["balanced_accuracy"] == pytest.approx(
            100 * balanced_accuracy_score(test.labels, predicted)
        )
        assert found["auc"] == pytest.approx(100 * roc_auc_score(test.labels, logits[:, 0]))


def test_the_papers_weights_follow_the_classes_names():
    weights = parse_class_weights(["mhist"])
    assert weights_of(weights, ("HP", "SSA")).tolist() == pytest.approx([1.0, 2.45])
    assert weights_of(weights, ("SSA", "hyperplastic")).tolist() == pytest.approx([2.45, 1.0])
