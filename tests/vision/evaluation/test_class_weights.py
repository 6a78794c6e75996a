import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import log_softmax

from vision.evaluation.fine_tuning import classification_loss, parse_class_weights, weights_of


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
