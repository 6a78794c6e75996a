"""Objectives without negatives and without a temperature.

Each takes unnormalised embeddings (batch, dim), one row for each image, and computes in fp32 (fp64
for fp64 embeddings), under autocast too. Statistics of the batch keep the embeddings apart; in BYOL
and DINO, a teacher that follows the student slowly does.

On several processes, pass a :class:`~dystress_text.losses.gather.ProcessGather`. Statistics are
then those of the global batch. The mean of the losses over the processes, and after
DistributedDataParallel's averaging every gradient, equals that of one process with the global
batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dystress_text.losses.gather import Gather
from dystress_text.losses.objectives import Objective
from dystress_text.losses.registry import check_count, check_number, register
from dystress_text.losses.vectors import at_least_fp32

PROTOTYPES = 4096  # solo-learn's for CIFAR and ImageNet100; DINO's paper has 65,536
_VARIANCE = 1e-5  # added to variances, as batch normalisation does


class NegativeFreeLoss(Objective):
    """The base class of losses without negatives, which are computed in fp32 under autocast."""

    def forward(self, *views: Tensor) -> Tensor:
        """Return the loss of the embeddings of views, (batch, dim) each."""
        shapes = {tuple(z.shape) for z in views}
        if len(shapes) > 1 or views[0].ndim != 2:
            raise ValueError(f"embeddings must have the same shape (batch, dim), got {shapes}")
        with torch.autocast(device_type=views[0].device.type, enabled=False):
            return self.of_views(*map(at_least_fp32, views))

    def of_views(self, *views: Tensor) -> Tensor:
        """Return the loss in full precision."""
        raise NotImplementedError


class GlobalBatchLoss(NegativeFreeLoss):
    """The base class of losses of two views that are computed over the global batch."""

    def formula(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Return the loss of two views, (N, dim) each."""
        raise NotImplementedError

    def of_views(self, *views: Tensor) -> Tensor:
        both = self.gather(torch.cat(views, dim=1))  # (N, 2 dim)
        if len(both) < 2:
            raise ValueError(
                "batch of 1 image has no statistics: the batch size must be at least 2"
            )
        return self.formula(*both.chunk(2, dim=1))


@register("barlow_twins")
class BarlowTwinsLoss(GlobalBatchLoss):
    """Barlow Twins (Zbontar et al., ICML 2021, Eqs. 1 and 2): make the views' cross-correlation the
    identity.

    ``sum_i (1 - C_ii)^2 + off_diagonal * sum_{i != j} C_ij^2`` with ``C = z1' z2 / N`` of
    dimensions that have mean 0 and variance 1 over the batch. This is the loss as the paper prints
    it, with its lambda; libraries scale it (solo-learn by 0.1).
    """

    def __init__(self, off_diagonal: float = 0.0051, *, gather: Gather | None = None) -> None:
        super().__init__(gather)
        self.off_diagonal = check_number("off_diagonal", off_diagonal, "[0, inf)")

    def formula(self, z1: Tensor, z2: Tensor) -> Tensor:
        z1 = _standardised(z1, dim=0)
        z2 = _standardised(z2, dim=0)
        correlation = z1.T @ z2 / len(z1)  # (dim, dim)
        agreement = (1 - correlation.diagonal()).square().sum()
        return agreement + self.off_diagonal * _off_diagonal_squares(correlation)


@register("vicreg")
class VICRegLoss(GlobalBatchLoss):
    """VICReg (Bardes et al., ICLR 2022, Algorithm 1): close views, large variances, small
    covariances.

    ``invariance * mean (z1 - z2)^2 + sum over views of (variance * mean_j max(0, 1 - std_j) +
    covariance * sum_{i != j} Cov_ij^2 / dim)``, with ``std_j`` the root of the unbiased variance
    plus 1e-4. The mean of the first term is over rows and dimensions, as in the paper's algorithm;
    its Eq. 5 sums over dimensions.
    """

    def __init__(
        self,
        invariance: float = 25,
        variance: float = 25,
        covariance: float = 1,
        *,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(gather)
        self.invariance = check_number("invariance", invariance, "[0, inf)")
        self.variance = check_number("variance", variance, "[0, inf)")
        self.covariance = check_number("covariance", covariance, "[0, inf)")

    def formula(self, z1: Tensor, z2: Tensor) -> Tensor:
        loss = self.invariance * (z1 - z2).square().mean()
        for z in (z1, z2):
            hinge = F.relu(1 - (z.var(dim=0) + 1e-4).sqrt())  # (dim,)
            loss = loss + self.variance * hinge.mean()
            loss = loss + self.covariance * _off_diagonal_squares(_covariance(z)) / z.shape[1]
        return loss


@register("w_mse")
class WMSELoss(GlobalBatchLoss):
    """W-MSE (Ermolov et al., ICML 2021, Eqs. 5 and 6): the distance between whitened, normalised
    views.

    ``mean_i |v1_i - v2_i|^2``, where v is ``L^-1 (z - mean z)`` at unit length and L the Cholesky
    factor of the covariance of z. Each view is whitened in slices of at least 2 dim rows, the
    paper's ratio. Slices are consecutive rows, as batches are shuffled already; the paper draws
    them at random. The batch must have more rows than dimensions.
    """

    def formula(self, z1: Tensor, z2: Tensor) -> Tensor:
        n, dim = z1.shape
        slices = max(1, n // (2 * dim))
        views = (torch.cat([_white(part) for part in z.tensor_split(slices)]) for z in (z1, z2))
        first, second = views  # (N, dim)
        return (first - second).square().sum(1).mean()


@register("zero_icl")
class ZeroICLLoss(GlobalBatchLoss):
    """Zero-ICL (Zhang et al., ICLR 2022): agreement of the views with decorrelated instances.

    It standardises each row, whitens the rows and takes ``sum_i (1 - h1_i . h2_i / dim)^2``; the
    ridge of the whitening is 0.01, as in the authors' program for ImageNet100 (theirs for CIFAR
    shrinks by 0.1).
    """

    def formula(self, z1: Tensor, z2: Tensor) -> Tensor:
        first = _decorrelated(_standardised(z1, dim=1), ridge=0.01)  # (N, dim)
        second = _decorrelated(_standardised(z2, dim=1), ridge=0.01)
        return _disagreement(first, second)


@register("zero_fcl")
class ZeroFCLLoss(ZeroICLLoss):
    """Zero-FCL: Zero-ICL of the transposed embeddings, which decorrelates the features."""

    def formula(self, z1: Tensor, z2: Tensor) -> Tensor:
        return super().formula(z1.T, z2.T)


@register("zero_cl")
class ZeroCLLoss(ZeroICLLoss):
    """Zero-CL: the sum of Zero-ICL and Zero-FCL; their equal weights are our choice."""

    def formula(self, z1: Tensor, z2: Tensor) -> Tensor:
        return super().formula(z1, z2) + super().formula(z1.T, z2.T)


@register("arb")
class ARBLoss(GlobalBatchLoss):
    """ARB (Zhang et al., CVPR 2022): align each view with the orthonormal basis that is nearest to
    the other.

    ``sum_j (1 - z1_j . b2_j / N)^2 + sum_j (1 - z2_j . b1_j / N)^2`` over features that are
    standardised over the batch; the basis b is the whitened view, with the ridge 1e-5, and carries
    no gradient. All features form one group, the default of the authors' programs, so their
    permutation of the features has no effect and is left out.
    """

    def formula(self, z1: Tensor, z2: Tensor) -> Tensor:
        z1 = _standardised(z1.T, dim=1)  # (dim, N)
        z2 = _standardised(z2.T, dim=1)
        base1 = _decorrelated(z1.detach(), ridge=1e-5)
        base2 = _decorrelated(z2.detach(), ridge=1e-5)
        return _disagreement(z1, base2) + _disagreement(z2, base1)


@register("byol")
class BYOLLoss(NegativeFreeLoss):
    """BYOL (Grill et al., NeurIPS 2020, Eq. 2 on both views): the distance from predictions to
    targets.

    ``mean |p1 - t2|^2 + mean |p2 - t1|^2`` over the images, with the student's predictions p and
    the teacher's outputs t as unit vectors.
    """

    task = "predictor"
    task_options = ("key_momentum",)

    def of_views(self, *views: Tensor) -> Tensor:
        p1, p2, t1, t2 = (F.normalize(z, dim=1) for z in views)
        first = (p1 - t2.detach()).square().sum(1)  # (batch,)
        second = (p2 - t1.detach()).square().sum(1)
        return (first + second).mean()


@register("dino")
class DINOLoss(NegativeFreeLoss):
    """DINO (Caron et al., ICCV 2021, Eqs. 3 and 4): match the teacher's choice of prototypes for
    another crop.

    The mean of ``H(P_t(x), P_s(y))`` over the images, the teacher's two large crops x and the
    student's other crops y, large and small, with the cross-entropy H, ``P_s = softmax(s /
    student_temperature)`` and ``P_t = softmax((t - centre) / teacher_temperature)``. In training
    mode the centre then follows the mean of the teacher's outputs over all processes. The warm-up
    of the teacher's temperature and the first epoch with fixed prototypes are left out.

    It takes the student's outputs for the two large crops and for any number of small ones, then
    the teacher's for the two large ones, all (batch, prototypes).
    """

    task = "prototypes"
    task_options = ("key_momentum", "small_crops")

    centre: Tensor
    student_temperature = 0.1  # the paper's
    centre_momentum = 0.9  # the paper's
    teacher_temperature = 0.04  # the paper's at the start

    def __init__(self, prototypes: int = PROTOTYPES, *, gather: Gather | None = None) -> None:
        super().__init__(gather)
        self.prototypes = check_count("prototypes", prototypes, "[2, 1000000]")
        self.register_buffer("centre", torch.zeros(self.prototypes))

    def of_views(self, *views: Tensor) -> Tensor:
        student = [F.log_softmax(s / self.student_temperature, dim=1) for s in views[:-2]]
        outputs = [t.detach() for t in views[-2:]]
        terms = []
        for i, output in enumerate(outputs):
            teacher = torch.softmax((output - self.centre) / self.teacher_temperature, dim=1)
            others = student[:i] + student[i + 1 :]
            terms += [-(teacher * log_probabilities).sum(1) for log_probabilities in others]
        if self.training:
            mean = torch.cat(outputs).mean(0, keepdim=True)
            mean = self.gather(mean).mean(0)  # over all processes, (prototypes,)
            self.centre = torch.lerp(mean.to(self.centre), self.centre, self.centre_momentum)
        return torch.stack(terms).mean()  # of (pairs of crops, batch)


def _white(z: Tensor, shrinkage: float = 1e-3) -> Tensor:
    """Whiten rows (rows, dim), and scale them to length 1.

    The shrinkage moves the covariance towards its mean variance times the identity, so that fp32
    can factor it; the paper has none.
    """
    covariance = _covariance(z)  # (dim, dim)
    scale = covariance.diagonal().mean() + torch.finfo(z.dtype).eps
    identity = torch.eye(len(covariance), dtype=z.dtype, device=z.device)
    factor = torch.linalg.cholesky((1 - shrinkage) * covariance + shrinkage * scale * identity)
    centred = (z - z.mean(0)).T  # (dim, rows)
    white: Tensor = torch.linalg.solve_triangular(factor, centred, upper=False)
    return F.normalize(white.T, dim=1)


def _standardised(z: Tensor, dim: int) -> Tensor:
    """Scale to mean 0 and variance 1 along a dimension; a constant becomes 0."""
    variance, mean = torch.var_mean(z, dim, correction=0, keepdim=True)
    return (z - mean) * (variance + _VARIANCE).rsqrt()


def _decorrelated(x: Tensor, ridge: float) -> Tensor:
    """Return ``(x x' / m + ridge I)^(-1/2) x`` of x (k, m); the factor has no gradient.

    The factor is ``ridge^(-1/2)`` except along the min(k, m) singular vectors of x, so that no
    (k, k) matrix is needed if k is above m.
    """
    with torch.no_grad():
        vectors, values, _ = torch.linalg.svd(x, full_matrices=False)  # (k, r), (r,)
        gains = (values.square() / x.shape[1] + ridge).rsqrt() - ridge**-0.5
    whitened: Tensor = ridge**-0.5 * x + vectors @ (gains[:, None] * (vectors.mT @ x))
    return whitened


def _covariance(z: Tensor) -> Tensor:
    """Return the covariance of the columns, (n, dim) -> (dim, dim).

    It equals ``torch.cov``, which makes the host wait for the device.
    """
    centred = z - z.mean(dim=0)
    return centred.T @ centred / (len(z) - 1)


def _disagreement(a: Tensor, b: Tensor) -> Tensor:
    """Return ``sum_i (1 - a_i . b_i / m)^2`` over the rows of two matrices (k, m)."""
    return (1 - (a * b).mean(1)).square().sum()


def _off_diagonal_squares(matrix: Tensor) -> Tensor:
    return (matrix - matrix.diagonal().diag()).square().sum()
