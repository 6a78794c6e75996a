"""Objectives without negatives: each against its formula written out, its gradient, processes, precision, limits."""

import math

import numpy as np
import pytest
import torch
from processes import in_threads

from vision.pretraining.negative_free import NEGATIVE_FREE


def draw(n=12, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(n, dim, generator=generator, dtype=torch.float64) @ (torch.eye(dim) + 0.4).double()
    return [base + 0.5 * torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(2)]


# ---- the formulas, number by number ---------------------------------------------------------------------------------


def standardised(columns):
    """Each list of numbers with mean 0 and variance 1, but for batch normalisation's 1e-5."""
    found = []
    for column in columns:
        mean = math.fsum(column) / len(column)
        variance = math.fsum((x - mean) ** 2 for x in column) / len(column)
        found.append([(x - mean) / math.sqrt(variance + 1e-5) for x in column])
    return found


def columns_of(z):
    return [list(column) for column in zip(*z.tolist(), strict=True)]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def barlow(z1, z2, weight=0.0051):
    a, b = standardised(columns_of(z1)), standardised(columns_of(z2))
    total = 0.0
    for i in range(len(a)):
        for j in range(len(b)):
            c = dot(a[i], b[j]) / len(z1)
            total += (1 - c) ** 2 if i == j else weight * c**2
    return total


def vicreg(z1, z2, invariance=25, variance=25, covariance=1):
    n, dim = z1.shape
    pairs = zip(z1.flatten().tolist(), z2.flatten().tolist(), strict=True)
    total = invariance * math.fsum((x - y) ** 2 for x, y in pairs) / (n * dim)
    for z in (z1, z2):
        centred = [[x - math.fsum(column) / n for x in column] for column in columns_of(z)]
        for i in range(dim):
            total += variance * max(0, 1 - math.sqrt(dot(centred[i], centred[i]) / (n - 1) + 1e-4)) / dim
            for j in range(dim):
                if i != j:
                    total += covariance * (dot(centred[i], centred[j]) / (n - 1)) ** 2 / dim
    return total


def w_mse(z1, z2, shrinkage=1e-3, rows_per_dim=2):
    n, dim = z1.shape
    slices, losses = max(1, n // (rows_per_dim * dim)), []
    for part in np.array_split(np.arange(n), slices):
        white = []
        for z in (z1.numpy()[part], z2.numpy()[part]):
            covariance = np.cov(z, rowvar=False)
            covariance = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / dim * np.eye(dim)
            v = (z - z.mean(0)) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
            white.append(v / np.linalg.norm(v, axis=1, keepdims=True))
        losses += [2 - 2 * dot(a, b) for a, b in zip(*white, strict=True)]
    return math.fsum(losses) / n


def zca(x, shrinkage):
    """The inverse root by Newton's iteration, not by eigenvalues."""
    matrix = (1 - shrinkage) * x @ x.T / x.shape[1] + shrinkage * np.eye(len(x))
    scale = np.linalg.norm(matrix)
    y, z, identity = matrix / scale, np.eye(len(x)), np.eye(len(x))
    for _ in range(60):
        step = (3 * identity - z @ y) / 2
        y, z = y @ step, step @ z
    return z / math.sqrt(scale)


def zero_part(rows1, rows2, shrinkage=0.1):
    white = []
    for rows in (rows1, rows2):
        x = np.array(standardised(rows))
        white.append(zca(x, shrinkage) @ x)
    return math.fsum((1 - dot(a, b) / len(a)) ** 2 for a, b in zip(*white, strict=True))


def zero_icl(z1, z2):
    return zero_part(z1.tolist(), z2.tolist())


def zero_fcl(z1, z2):
    return zero_part(columns_of(z1), columns_of(z2))


def arb(z1, z2, size=5, shrinkage=1e-4):
    x1, x2 = (np.array(standardised(columns_of(z))) for z in (z1, z2))
    total = 0.0
    for x, other in ((x1, x2), (x2, x1)):
        for start in range(0, len(x), size):
            group = other[start : start + size]
            base = zca(group, shrinkage) @ group
            total += math.fsum(
                (1 - dot(a, b) / len(a)) ** 2 for a, b in zip(x[start : start + size], base, strict=True)
            )
    return total


FORMULAS = {
    "barlow_twins": barlow,
    "vicreg": vicreg,
    "w_mse": w_mse,
    "zero_icl": zero_icl,
    "zero_fcl": zero_fcl,
    "zero_cl": lambda z1, z2: zero_icl(z1, z2) + zero_fcl(z1, z2),
    "arb": arb,
}


@pytest.mark.parametrize("n", [12, 23])  # of 5 dimensions: one slice of W-MSE, and two
@pytest.mark.parametrize("scale", [1, 0.3])  # standard deviations above VICReg's hinge, and below
@pytest.mark.parametrize("name", FORMULAS)
def test_the_loss_is_its_formula(name, scale, n):
    z1, z2 = (scale * z for z in draw(n))
    loss = NEGATIVE_FREE[name]()(z1, z2)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(FORMULAS[name](z1, z2), rel=1e-9)


# ---- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["barlow_twins", "vicreg", "w_mse"])
def test_the_gradient_is_the_losss(name):
    assert torch.autograd.gradcheck(NEGATIVE_FREE[name](), [z.requires_grad_() for z in draw(11, 4)], atol=1e-6)


# ---- several processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
def test_the_mean_over_processes_is_the_single_process(name):
    world_size = 3
    views = [z.requires_grad_() for z in draw(24)]
    single = NEGATIVE_FREE[name]()(*views)
    expected = torch.autograd.grad(single, views)
    losses = in_threads(
        world_size,
        lambda gather: NEGATIVE_FREE[name](gather=gather)(*(z.chunk(world_size)[gather.rank] for z in views)),
    )
    for loss in losses:
        torch.testing.assert_close(loss, single, rtol=1e-12, atol=0)
    found = torch.autograd.grad(torch.stack(losses).mean(), views)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


# ---- precision and limits -------------------------------------------------------------------------------------------
