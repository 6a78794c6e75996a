"""Histograms of similarities against scikit-learn, in blocks that do not divide the rows."""

import numpy as np
import torch
from sklearn.metrics.pairwise import cosine_similarity

from vision.evaluation import histograms

LABELS = torch.tensor([5, -1, 5, 2, 5, 2, -1, 5, 9, 2, 5])
SAME = LABELS.numpy()[:, None] == LABELS.numpy()
ITSELF = np.eye(11, dtype=bool)


def test_histograms(monkeypatch):
    monkeypatch.setattr(histograms, "BLOCK", 4)
    x, noise = torch.randn(2, 11, 5, generator=torch.Generator().manual_seed(0)).double()
    x *= torch.logspace(-2, 2, 11).unsqueeze(1)
    y = x + 0.3 * x.norm(dim=1, keepdim=True) * noise
    s = cosine_similarity(x.numpy(), y.numpy())
    found = histograms.similarity_histograms(x, y, LABELS, bins=7)
    for counts, kind in zip(found[1:], (ITSELF, SAME & ~ITSELF, ~SAME), strict=True):
        assert counts.tolist() == np.histogram(s[kind], bins=7, range=(-1, 1))[0].tolist()
