"""Objectives without negatives: each against its formula written out, its gradient, and several
processes.
"""

import math
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from processes import in_threads
from scipy.linalg import sqrtm
from scipy.special import log_softmax, softmax

from dystress_text.losses.registry import PARTS
from vision.pretraining import negative_free as objectives
from vision.pretraining.negative_free import DINOLoss


def draw(name, n=12, dim=5, scale=1.0):
    """Views that resemble each other; for a student and a teacher, two of each."""
    generator = torch.Generator().manual_seed(0)
    count = 4 if name in ("byol", "dino") else 2
    noise = torch.randn(count + 1, n, dim, generator=generator, dtype=torch.float64)
    base = noise[0] @ (torch.eye(dim) + 0.4).double()
    return list(scale * (base + 0.5 * noise[1:]))


def loss_of(name, gather=None):
    return PARTS[name](*[5] * (name == "dino"), gather=gather).double()


def standardised(x):
    """Rows with mean 0 and variance 1, but for batch normalisation's 1e-5."""
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


def barlow_twins(z1, z2):
    a, b = standardised(z1.T), standardised(z2.T)
    total = 0.0
    for i, j in product(range(len(a)), repeat=2):
        c = a[i] @ b[j] / len(z1)
        total += (1 - c) ** 2 if i == j else 0.0051 * c**2
    return total


def vicreg(z1, z2):
    total = 25 * np.mean((z1 - z2) ** 2)
    for z in (z1, z2):
        covariance, dim = np.cov(z, rowvar=False), z.shape[1]
        for i, j in product(range(dim), repeat=2):
            c = covariance[i, j]
            total += (25 * max(0, 1 - math.sqrt(c + 1e-4)) if i == j else c**2) / dim
    return total


def w_mse(z1, z2, shrinkage=1e-3):
    n, dim = z1.shape
    total = 0.0
    for part in np.array_split(np.arange(n), max(1, n // (2 * dim))):
        white = []
        for z in (z1[part], z2[part]):
            covariance = np.cov(z, rowvar=False)
            covariance = (1 - shrinkage) * covariance + shrinkage * np.trace(
                covariance
            ) / dim * np.eye(dim)
            v = (z - z.mean(0)) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
            white.append(v / np.linalg.norm(v, axis=1, keepdims=True))
        total += np.sum((white[0] - white[1]) ** 2)
    return total / n


def inverse_root(x, ridge):
    return np.linalg.inv(sqrtm(x @ x.T / x.shape[1] + ridge * np.eye(len(x))).real)


def white(x, ridge):
    return inverse_root(x, ridge) @ x


def zero_icl(z1, z2):
    a, b = (white(standardised(x), 0.01) for x in (z1, z2))
    return sum((1 - u @ v / len(u)) ** 2 for u, v in zip(a, b, strict=True))


def zero_fcl(z1, z2):
    return zero_icl(z1.T, z2.T)


def zero_cl(z1, z2):
    return zero_icl(z1, z2) + zero_fcl(z1, z2)


def arb(z1, z2):
    x1, x2 = standardised(z1.T), standardised(z2.T)
    pairs = [(x1, white(x2, 1e-5)), (x2, white(x1, 1e-5))]
    return sum((1 - u @ v / len(u)) ** 2 for x, base in pairs for u, v in zip(x, base, strict=True))


def byol(p1, p2, t1, t2):
    p1, p2, t1, t2 = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (p1, p2, t1, t2))
    return np.sum((p1 - t2) ** 2 + (p2 - t1) ** 2) / len(p1)


def dino(*views, centre=0.0):
    """The mean over every pair of the teacher's crop and another crop of the student; the teacher's
    are the last.
    """
    *students, t1, t2 = views
    terms = [
        -(softmax((t - centre) / 0.04, axis=1) * log_softmax(s / 0.1, axis=1)).sum(1).mean()
        for i, t in enumerate((t1, t2))
        for j, s in enumerate(students)
        if i != j
    ]
    return np.mean(terms)


FORMULAS = {
    f.__name__: f
    for f in (barlow_twins, vicreg, w_mse, zero_icl, zero_fcl, zero_cl, arb, byol, dino)
}


@pytest.mark.parametrize("n", [12, 23])  # of 5 dimensions: one slice of W-MSE, and two
@pytest.mark.parametrize("scale", [1, 0.3])  # standard deviations above VICReg's hinge, and below
@pytest.mark.parametrize("name", FORMULAS)
def test_the_loss_is_its_formula(name, scale, n):
    views = draw(name, n, scale=scale)
    assert loss_of(name)(*views).item() == pytest.approx(
        FORMULAS[name](*(z.numpy() for z in views)), rel=1e-9
    )


def test_dinos_centre_follows_the_teacher_and_is_saved():
    loss, centre = DINOLoss(5).double(), np.zeros(5)
    for scale in (0.1, 0.3, 0.2):
        views = draw("dino", 6, scale=scale)
        assert loss(*views).item() == pytest.approx(
            dino(*(z.numpy() for z in views), centre=centre), rel=1e-10
        )
        centre = 0.9 * centre + 0.1 * torch.cat(views[2:]).mean(0).numpy()
        assert loss.centre.numpy() == pytest.approx(centre, rel=1e-12)
    loss.eval()(*views)
    assert loss.state_dict()["centre"].numpy() == pytest.approx(centre, rel=1e-12)


@pytest.mark.parametrize("name", ["byol", "dino"])
def test_a_teacher_has_no_gradient(name):
    views = [z.requires_grad_() for z in draw(name)]
    found = torch.autograd.grad(loss_of(name)(*views), views, allow_unused=True)
    assert [g is None for g in found] == [False, False, True, True]


@pytest.mark.parametrize("shape", [(12, 5), (5, 12)])
def test_whitening_is_a_constant_to_the_gradient(shape):
    views = [z.requires_grad_() for z in draw("arb", *shape)]
    a, b = rows = [F.layer_norm(z, shape[1:]) for z in views]  # mean 0, variance 1, 1e-5
    fixed, nearest = (
        [torch.from_numpy(inverse_root(z.detach().numpy(), ridge)) for z in rows]
        for ridge in (1e-2, 1e-5)
    )
    icl = (1 - ((fixed[0] @ a) * (fixed[1] @ b)).mean(1)).square().sum()
    base = sum(
        (1 - (x * (root @ y.detach())).mean(1)).square().sum()
        for x, root, y in ((a, nearest[1], b), (b, nearest[0], a))
    )
    losses = (
        objectives.ZeroICLLoss().formula(*views),
        objectives.ARBLoss().formula(*(z.T for z in views)),
    )
    for ours, expected in zip(losses, (icl, base), strict=True):
        found, expected = (
            torch.autograd.grad(loss, views, retain_graph=True) for loss in (ours, expected)
        )
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_mean_over_processes_is_the_single_process(name):
    views = [z.requires_grad_() for z in draw(name, 24)]

    def losses(gather, own):
        loss = loss_of(name, gather)
        return loss(*own), getattr(loss, "centre", torch.zeros(1))

    single, centre = losses(None, views)
    ranks = in_threads(3, lambda gather: losses(gather, [z.chunk(3)[gather.rank] for z in views]))
    mean = torch.stack([of_rank for of_rank, _ in ranks]).mean()
    torch.testing.assert_close(mean, single, rtol=1e-12, atol=0)
    expected, found = (torch.autograd.grad(x, views[:2], retain_graph=True) for x in (single, mean))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)
    for _, of_rank in ranks:
        torch.testing.assert_close(of_rank, centre, rtol=1e-12, atol=1e-15)
