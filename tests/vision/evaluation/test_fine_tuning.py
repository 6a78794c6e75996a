"""Fine-tuning: its first step by hand, what it learns, and its figures."""

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
from vision_cases import as_float, colour_images, tiny_encoder, whole

from dystress_text.errors import TrainingError
from vision.evaluation import fine_tuning
from vision.evaluation.fine_tuning import (
    new_classifier,
    parse_class_weights,
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

    before = new_classifier(encoder, classes, seed=5).train()
    logits = before(as_float(train.pixels)).double()
    if classes == 2:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    of_images = weights[train.labels]
    terms = -logits.log_softmax(1)[torch.arange(12), train.labels] * of_images
    expected = terms.sum() / (of_images.sum() if classes == 3 else 12)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    for old, new in zip(before.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(new, old - rate * old.grad, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(("classes", "encoded_at_once"), [(2, 5), (3, 3), (3, 1)])
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
    ours = list(model.parameters())
    torch.testing.assert_close(ours, list(expected.parameters()), rtol=1e-3, atol=1e-4)


def test_no_part_and_no_step_has_a_single_image(monkeypatch):
    """It has no batch statistics."""
    monkeypatch.setattr(fine_tuning, "BATCH_SIZE", 4)
    train = colour_images(9)
    train_classifier(tiny_encoder(), whole(train), torch.ones(3), 1, encoded_at_once=1)


def test_divergence_is_an_error():
    weights = torch.full((3,), torch.inf)
    with pytest.raises(TrainingError, match="epoch 1:"):
        train_classifier(tiny_encoder(), whole(colour_images(6)), weights, 3)


@pytest.mark.parametrize(("classes", "first"), [(3, 0.1), (2, 1.0)])
def test_the_rate_falls_to_a_tenth_twice(classes, first, monkeypatch):
    """After three and four fifths of the epochs, two steps each."""
    rates = []
    step = torch.optim.SGD.step

    def recorded(self):
        rates.append(self.param_groups[0]["lr"])
        return step(self)

    monkeypatch.setattr(torch.optim.SGD, "step", recorded)
    monkeypatch.setattr(fine_tuning, "BATCH_SIZE", 4)
    train = colour_images(8, classes)
    train_classifier(tiny_encoder(), whole(train), torch.ones(classes), 5)
    assert rates == pytest.approx([first] * 6 + [first / 10] * 2 + [first / 100] * 2)


def test_it_learns_and_its_figures_are_scikit_learns(monkeypatch):
    monkeypatch.setattr(fine_tuning, "BATCH_SIZE", 8)
    monkeypatch.setattr(fine_tuning, "TWO_CLASS_RATE", 0.05)
    train = colour_images(60, 2)
    test = colour_images(31, 2, seed=1)
    model, _ = train_classifier(tiny_encoder(), whole(train), torch.ones(2), 5)
    figures = score_classifier(model, test, batch_size=7)
    assert figures["top1"] > 90
    with torch.no_grad():
        logits = model.eval()(as_float(test.pixels))[:, 0]
    expected = {
        "top1": accuracy_score(test.labels, logits > 0),
        "balanced_accuracy": balanced_accuracy_score(test.labels, logits > 0),
        "auc": roc_auc_score(test.labels, logits),
    }
    for name, share in expected.items():
        assert figures[name] == pytest.approx(100 * share)


@pytest.mark.parametrize("entry", ["mhist", "SSA=2.45"])
def test_weights_follow_the_names_of_classes(entry):
    weights = weights_of(parse_class_weights([entry]), ("HP", "SSA"))
    assert weights.tolist() == pytest.approx([1.0, 2.45])
