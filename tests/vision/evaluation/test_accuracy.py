import torch

from vision.evaluation.accuracy import Accuracy


def test_top1_and_top5():
    scores = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]] * 4)
    assert Accuracy.of(scores, torch.tensor([0, 4, 5, 6])) == Accuracy(25.0, 50.0)


def test_the_lower_class_wins_a_tie():
    scores = torch.tensor([[1.0, 1, 1, 1, 1, 1]])
    assert Accuracy.of(scores, torch.tensor([0])) == Accuracy(100.0, 100.0)
    assert Accuracy.of(scores, torch.tensor([1])) == Accuracy(0.0, 100.0)
    assert Accuracy.of(scores, torch.tensor([5])) == Accuracy(0.0, 0.0)


def test_top5_of_five_classes_says_nothing():
    assert Accuracy.of(torch.eye(5), torch.arange(5)) == Accuracy(100.0, None)
