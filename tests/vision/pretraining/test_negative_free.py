"""Objectives without negatives: values, gradients and several processes against formulas."""

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
    if name == "dino":
        return DINOLoss(5, gather=gather).double()
    return PARTS[name](gather=gather).double()


def standardised(x):
    """Rows with mean 0 and variance 1, but for batch normalisation's 1e-5."""
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def barlow_twins(z1, z2):
    a = standardised(z1.T)
    b = standardised(z2.T)
    total = 0.0
    for i, j in product(range(len(a)), repeat=2):
        c = a[i] @ b[j] / len(z1)
        total += (1 - c) ** 2 if i == j else 0.0051 * c**2
    return total


def vicreg(z1, z2):
    total = 25 * np.mean((z1 - z2) ** 2)
    for z in (z1, z2):
        dim = z.shape[1]
        for (i, j), c in np.ndenumerate(np.cov(z, rowvar=False)):
            penalty = 25 * max(0, 1 - math.sqrt(c + 1e-4)) if i == j else c**2
            total += penalty / dim
    return total


def w_mse(z1, z2, shrinkage=1e-3):
    n, dim = z1.shape
    total = 0.0
    for part in np.array_split(np.arange(n), max(1, n // (2 * dim))):
        white = []
        for z in (z1[part], z2[part]):
            covariance = np.cov(z, rowvar=False)
            sphere = np.trace(covariance) / dim * np.eye(dim)
            covariance = (1 - shrinkage) * covariance + shrinkage * sphere
            v = (z - z.mean(0)) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
            white.append(unit(v))
        total += np.sum((white[0] - white[1]) ** 2)
    return total / n


def inverse_root(x, ridge):
    return np.linalg.inv(sqrtm(x @ x.T / x.shape[1] + ridge * np.eye(len(x))).real)


def white(x, ridge):
    return inverse_root(x, ridge) @ x


def disagreement(a, b):
    """Of the rows of two matrices."""
    return ((1 - (a * b).mean(1)) ** 2).sum()


def zero_icl(z1, z2):
    return disagreement(white(standardised(z1), 0.01), white(standardised(z2), 0.01))


def zero_fcl(z1, z2):
    return zero_icl(z1.T, z2.T)


def zero_cl(z1, z2):
    return zero_icl(z1, z2) + zero_fcl(z1, z2)


def arb(z1, z2):
    x1 = standardised(z1.T)
    x2 = standardised(z2.T)
    return disagreement(x1, white(x2, 1e-5)) + disagreement(x2, white(x1, 1e-5))


def byol(p1, p2, t1, t2):
    first = unit(p1) - unit(t2)
    second = unit(p2) - unit(t1)
    return np.sum(first**2 + second**2) / len(p1)


def dino(*views, centre=0.0):
    """The mean over pairs of a crop of the teacher (the last two) and another of the student."""
    terms = []
    for i, t in enumerate(views[-2:]):
        target = softmax((t - centre) / 0.04, axis=1)
        for j, s in enumerate(views[:-2]):
            if i != j:
                terms.append(-(target * log_softmax(s / 0.1, axis=1)).sum(1).mean())
    return np.mean(terms)


FORMULAS = {
    f.__name__: f
    for f in (barlow_twins, vicreg, w_mse, zero_icl, zero_fcl, zero_cl, arb, byol, dino)
}


# of 5 dimensions: one slice of W-MSE, and two; deviations above VICReg's hinge, and below
@pytest.mark.parametrize(("n", "scale"), [(12, 1), (23, 0.3)])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_loss_is_its_formula(name, n, scale):
    views = draw(name, n, scale=scale)
    expected = FORMULAS[name](*map(np.asarray, views))
    assert loss_of(name)(*views).item() == pytest.approx(expected, rel=1e-9)


def test_dinos_centre_follows_the_teacher_and_is_saved():
    loss = DINOLoss(5).double()
    centre = np.zeros(5)
    for scale in (0.1, 0.3):
        views = draw("dino", 6, scale=scale)
        views.insert(2, 0.5 * views[0])  # of a small crop
        expected = dino(*map(np.asarray, views), centre=centre)
        assert loss(*views).item() == pytest.approx(expected, rel=1e-10)
        centre = 0.9 * centre + 0.1 * torch.cat(views[3:]).mean(0).numpy()
        assert loss.centre.numpy() == pytest.approx(centre, rel=1e-12)
    loss.eval()(*views)
    assert loss.state_dict()["centre"].numpy() == pytest.approx(centre, rel=1e-12)


@pytest.mark.parametrize("name", ["barlow_twins", "vicreg", "w_mse", "byol", "dino"])
def test_gradients_are_the_losss_and_none_for_a_teacher(name):
    loss = loss_of(name).eval()
    views = [z.requires_grad_() for z in draw(name, 11, scale=0.3)]
    teacher = [z.detach() for z in views[2:]]

    def of_students(*students):
        return loss(*students, *teacher)

    assert torch.autograd.gradcheck(of_students, views[:2], atol=1e-6)
    gradients = torch.autograd.grad(loss(*views), views, allow_unused=True)
    assert all(gradient is None for gradient in gradients[2:])


@pytest.mark.parametrize("shape", [(12, 5), (5, 12)])
def test_whitening_is_a_constant_to_the_gradient(shape):
    views = [z.requires_grad_() for z in draw("arb", *shape)]
    a, b = (F.layer_norm(z, shape[1:]) for z in views)  # mean 0, variance 1, 1e-5

    def whitened(x, factor_of, ridge):
        return torch.from_numpy(inverse_root(factor_of.detach().numpy(), ridge)) @ x

    zero_icl = disagreement(whitened(a, a, 1e-2), whitened(b, b, 1e-2))
    base_a = whitened(a, a, 1e-5).detach()
    base_b = whitened(b, b, 1e-5).detach()
    arb = disagreement(a, base_b) + disagreement(b, base_a)
    ours = {
        objectives.ZeroICLLoss().formula(*views): zero_icl,
        objectives.ARBLoss().formula(views[0].T, views[1].T): arb,
    }
    for loss, formula in ours.items():
        gradients = torch.autograd.grad(loss, views, retain_graph=True)
        expected = torch.autograd.grad(formula, views, retain_graph=True)
        torch.testing.assert_close(gradients, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_mean_over_processes_is_the_single_process(name):
    views = [z.requires_grad_() for z in draw(name, 24)]

    def run(gather):
        loss = loss_of(name, gather)
        own = [z.chunk(3)[gather.rank] for z in views] if gather else views
        return loss(*own), getattr(loss, "centre", torch.zeros(1))

    single, centre = run(None)
    losses, centres = zip(*in_threads(3, run), strict=True)
    mean = torch.stack(losses).mean()
    torch.testing.assert_close(mean, single, rtol=1e-12, atol=0)
    expected = torch.autograd.grad(single, views[:2], retain_graph=True)
    gradients = torch.autograd.grad(mean, views[:2], retain_graph=True)
    torch.testing.assert_close(gradients, expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(centres, (centre,) * 3, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("weight", ["invariance", "variance", "covariance"])
def test_weights_below_zero_are_refused(weight):
    with pytest.raises(ValueError, match=weight):
        objectives.VICRegLoss(**{weight: -1})


@pytest.mark.parametrize("shapes", [((4, 8), (5, 8)), ((2, 4, 8),) * 2, ((1, 8),) * 2])
def test_embeddings_without_a_loss_are_refused(shapes):
    """Of other shapes than (batch, dim), or a batch without statistics."""
    views = [torch.randn(shape) for shape in shapes]
    with pytest.raises(ValueError, match="batch"):
        objectives.BarlowTwinsLoss()(*views)
