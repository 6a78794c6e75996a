import torch

from vision.evaluation.knn import Accuracy


def test_top1_and_top5_and_ties():
    scores = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]] * 4)
    assert Accuracy.of(scores, torch.tensor([0, 4, 5, 6])) == Accuracy(25.0, 50.0)
    tie = torch.ones(1, 6)  # the lower class wins
    assert [Accuracy.of(tie, torch.tensor([k])).top1 for k in (0, 1)] == [100.0, 0.0]
    assert Accuracy.of(torch.eye(5), torch.arange(5)) == Accuracy(100.0, None)
