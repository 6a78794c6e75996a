import math

import pytest
import torch

from dystress_text.errors import UserError
from vision.evaluation.fine_tuning import NAMED_WEIGHTS, check_class_weights, classification_loss, parse_class_weights


def softmax(row):
    e = [math.exp(value - max(row)) for value in row]
    return [value / sum(e) for value in e]


def test_the_loss_of_several_classes_is_the_weighted_mean():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (20,), generator=generator)
    weights = NAMED_WEIGHTS["chaoyang"]
    total = sum(
        weights[c] * -math.log(softmax(row)[c]) for row, c in zip(logits.tolist(), labels.tolist(), strict=True)
    )
    truth = total / sum(weights[c] for c in labels.tolist())
    mine = classification_loss(logits, labels, torch.tensor(weights, dtype=torch.float64))
    assert mine.item() == pytest.approx(truth, rel=1e-12)


def test_the_loss_of_two_classes_weighs_the_second():
    logits = torch.tensor([[0.3], [-1.2], [2.0]], dtype=torch.float64)
    labels = torch.tensor([1, 1, 0])
    p = [1 / (1 + math.exp(-value)) for value in logits.flatten().tolist()]
    truth = (-2.45 * math.log(p[0]) - 2.45 * math.log(p[1]) - math.log(1 - p[2])) / 3
    mine = classification_loss(logits, labels, torch.tensor(NAMED_WEIGHTS["mhist"], dtype=torch.float64))
    assert mine.item() == pytest.approx(truth, rel=1e-12)


def test_weights_of_one_change_nothing():
    logits, labels = torch.randn(9, 3), torch.arange(9) % 3
    assert classification_loss(logits, labels, torch.ones(3)) == classification_loss(logits, labels)


def test_weights_by_name_and_by_number():
    assert parse_class_weights(["mura"]) == (0.7097,)
    assert parse_class_weights(["isic2016"]) == (4.24,)
    assert parse_class_weights(["mhist"]) == (2.45,)
    assert parse_class_weights(["chaoyang"]) == (1.264, 1.667, 1.0, 2.114)
    assert parse_class_weights(["1", "2.5", "0.5"]) == (1.0, 2.5, 0.5)
    assert parse_class_weights([]) == ()
    check_class_weights((), ("a", "b", "c"))
    check_class_weights((1.0, 2.5, 0.5), ("a", "b", "c"))
    check_class_weights((2.45,), ("benign", "malignant"))


@pytest.mark.parametrize(
    ("weights", "classes", "message"),
    [
        ((1.0, 2.0), ("a", "b", "c"), "got 2 numbers, but these classes need 3, one for each of a, b, c$"),
        ((1.0, 2.0), ("a", "b"), "got 2 numbers, but these classes need one, that of the positive class 'b'$"),
        ((1.0, 0.0, 1.0), ("a", "b", "c"), "must be above 0, got 1 0 1$"),
        ((float("nan"),), ("a", "b"), "must be above 0, got nan$"),
        ((1.0,), tuple(map(str, range(12))), "need 12, one for each of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...$"),
    ],
)
def test_weights_that_do_not_fit(weights, classes, message):
    with pytest.raises(UserError, match=f"^--class_weights: .*{message}"):
        check_class_weights(weights, classes)


def test_words_that_are_no_weights():
    with pytest.raises(UserError, match="--class_weights: 'lots' is neither numbers nor one of mura, isic2016"):
        parse_class_weights(["lots"])
