"""Objectives without negatives: statistics of the batch, not pairs of images, keep the embeddings apart.

Each takes both views' unnormalised embeddings (batch, dim) and has no temperature. Statistics are computed in fp32
(fp64 for fp64 embeddings), under autocast too.

On several processes, pass a :class:`~dystress_text.core.gather.ProcessGather`. Every process then uses the statistics
of the global batch. Its loss, and after DistributedDataParallel's averaging every gradient, equals that of one process
with the global batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dystress_text.core.gather import Gather, LocalGather
from dystress_text.core.vectors import at_least_fp32

_VARIANCE = 1e-5  # added to variances, as batch normalisation does


class NegativeFreeLoss(nn.Module):
    """The base class: the gather, fp32 under autocast and the checks.

    Args:
        gather: the other processes; None for one process.
    """

    def __init__(self, gather: Gather | None = None) -> None:
        super().__init__()
        self.gather: Gather = gather or LocalGather()

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of both views (batch, dim); the i-th rows are views of one image.

        Raises:
            ValueError: the shapes differ or are not (batch, dim), or the global batch has one image.
        """
        if z1.ndim != 2 or z1.shape != z2.shape:
            shapes = f"{tuple(z1.shape)}, {tuple(z2.shape)}"
            raise ValueError(f"embeddings must both have one shape (batch, dim), got {shapes}")
        if len(z1) * self.gather.world_size < 2:
            raise ValueError("a batch of 1 image has no statistics: the batch size must be at least 2")
        with torch.autocast(device_type=z1.device.type, enabled=False):
            views = torch.cat([z1, z2], dim=1)  # (n, 2 dim)
            views = self.gather(at_least_fp32(views))  # (N, 2 dim)
            return self.of_batch(*views.chunk(2, dim=1))

    def of_batch(self, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of all processes' rows (N, dim)."""
        raise NotImplementedError


class BarlowTwinsLoss(NegativeFreeLoss):
    """Barlow Twins (Zbontar et al., ICML 2021, Eqs. 1 and 2): make the views' cross-correlation the identity.

    ``sum_i (1 - C_ii)^2 + off_diagonal * sum_{i != j} C_ij^2`` with ``C = z1' z2 / N`` of dimensions that have mean 0
    and variance 1 over the batch. This is the loss as the paper prints it; libraries scale it (solo-learn by 0.1).

    Args:
        off_diagonal: the paper's lambda, 0.0051.
        gather: the other processes; None for one process.

    Raises:
        ValueError: a negative weight.

    Example:
        >>> loss = BarlowTwinsLoss()
        >>> loss(torch.randn(8, 16), torch.randn(8, 16)).shape
        torch.Size([])
    """

    def __init__(self, off_diagonal: float = 0.0051, gather: Gather | None = None) -> None:
        super().__init__(gather)
        _check_weights(off_diagonal=off_diagonal)
        self.off_diagonal = off_diagonal

    def of_batch(self, z1: Tensor, z2: Tensor) -> Tensor:
        correlation = _standardised(z1, dim=0).T @ _standardised(z2, dim=0) / len(z1)  # (dim, dim)
        return (1 - correlation.diagonal()).square().sum() + self.off_diagonal * _off_diagonal_squares(correlation)


class VICRegLoss(NegativeFreeLoss):
    """VICReg (Bardes et al., ICLR 2022, Algorithm 1): invariance, a hinge on each variance, no covariance.

    ``invariance * mean (z1 - z2)^2 + sum over views of (variance * mean_j max(0, 1 - std_j) + covariance *
    sum_{i != j} Cov_ij^2 / dim)``, with ``std_j`` the root of the unbiased variance plus 1e-4. The mean of the first
    term is over rows and dimensions, as in the paper's algorithm; its Eq. 5 sums over dimensions.

    Args:
        invariance: the paper's lambda, 25.
        variance: the paper's mu, 25.
        covariance: the paper's nu, 1.
        gather: the other processes; None for one process.

    Raises:
        ValueError: a negative weight.

    Example:
        >>> loss = VICRegLoss()
        >>> loss(torch.randn(8, 16), torch.randn(8, 16)).shape
        torch.Size([])
    """

    def __init__(
        self,
        invariance: float = 25.0,
        variance: float = 25.0,
        covariance: float = 1.0,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(gather)
        _check_weights(invariance=invariance, variance=variance, covariance=covariance)
        self.invariance, self.variance, self.covariance = invariance, variance, covariance

    def of_batch(self, z1: Tensor, z2: Tensor) -> Tensor:
        loss = self.invariance * (z1 - z2).square().mean()
        for z in (z1, z2):
            hinge = F.relu(1 - (z.var(dim=0) + 1e-4).sqrt())  # (dim,)
            loss = loss + self.variance * hinge.mean()
            loss = loss + self.covariance * _off_diagonal_squares(_covariance(z)) / z.shape[1]
        return loss


class WhiteningMSELoss(NegativeFreeLoss):
    """W-MSE (Ermolov et al., ICML 2021, Eqs. 5 and 6): the distance of the views once each is white and normalised.

    ``mean_i |v1_i - v2_i|^2``, where v is ``L^-1 (z - mean z)`` at unit length and L the Cholesky factor of z's
    covariance. Each view is whitened in slices of the batch, as many as leave a slice at least ``rows_per_dim * dim``
    rows. Batches are shuffled, so slices are consecutive rows, where the paper draws them at random.

    Args:
        rows_per_dim: 2 is the paper's ratio (128 rows in 64 dimensions).
        shrinkage: share of the covariance that is replaced by its mean variance times the identity, so that fp32 can
            factor it. It is ours; the paper has none.
        gather: the other processes; None for one process.

    Raises:
        ValueError: ratio or shrinkage out of range; in a call, a batch that does not have more rows than dimensions.

    Example:
        >>> loss = WhiteningMSELoss()
        >>> loss(torch.randn(32, 16), torch.randn(32, 16)).shape
        torch.Size([])
    """

    def __init__(self, rows_per_dim: int = 2, shrinkage: float = 1e-3, gather: Gather | None = None) -> None:
        super().__init__(gather)
        if rows_per_dim < 2:
            raise ValueError(f"rows_per_dim must be at least 2 for a covariance of full rank, got {rows_per_dim}")
        _check_shrinkage(shrinkage)
        self.rows_per_dim, self.shrinkage = rows_per_dim, shrinkage

    def of_batch(self, z1: Tensor, z2: Tensor) -> Tensor:
        n, dim = z1.shape
        if n <= dim:
            raise ValueError(
                f"{n} rows have no covariance of full rank in {dim} dimensions, so they cannot be whitened: the batch "
                f"must have more rows than dimensions, and {2 * dim} are usual"
            )
        slices = max(1, n // (self.rows_per_dim * dim))
        first, second = (torch.cat([self._white(part) for part in z.tensor_split(slices)]) for z in (z1, z2))
        return (first - second).square().sum(1).mean()

    def _white(self, z: Tensor) -> Tensor:
        """Unit vectors (rows, dim) of whitened rows."""
        covariance = _covariance(z)  # (dim, dim)
        scale = covariance.diagonal().mean() + torch.finfo(z.dtype).eps
        identity = torch.eye(len(covariance), dtype=z.dtype, device=z.device)
        factor = torch.linalg.cholesky((1 - self.shrinkage) * covariance + self.shrinkage * scale * identity)
        white: Tensor = torch.linalg.solve_triangular(factor, (z - z.mean(0)).T, upper=False)  # (dim, rows)
        return F.normalize(white.T, dim=1)


class ZeroCLLoss(NegativeFreeLoss):
    """Zero-CL (Zhang et al., ICLR 2022): agreement of the views where instances, features or both are decorrelated.

    Zero-FCL standardises each feature over the batch, whitens the features (``H = W Z``, ``W = ((1 - shrinkage)
    Z Z' / N + shrinkage I)^(-1/2)``) and takes ``sum_j (1 - h1_j . h2_j / N)^2`` over the features. Zero-ICL does the
    same with the roles of features and instances exchanged; Zero-CL is the sum of both. As in the authors' code, W is a
    constant to the gradient and the shrinkage 0.1, so that more features than instances (or the reverse) can be
    whitened too. Equal weights of the two parts are our choice.

    The whitening of 2,048 features decomposes a matrix of that size for each view, in each step.

    Args:
        parts: ``instance`` (Zero-ICL), ``feature`` (Zero-FCL) or ``both`` (Zero-CL).
        shrinkage: above 0 and below 1.
        gather: the other processes; None for one process.

    Raises:
        ValueError: unknown parts, or a shrinkage out of range.

    Example:
        >>> loss = ZeroCLLoss("feature")
        >>> loss(torch.randn(32, 16), torch.randn(32, 16)).shape
        torch.Size([])
    """

    def __init__(
        self,
        parts: Literal["instance", "feature", "both"] = "both",
        shrinkage: float = 0.1,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(gather)
        if parts not in ("instance", "feature", "both"):
            raise ValueError(f"parts must be instance, feature or both, got {parts!r}")
        _check_shrinkage(shrinkage)
        self.parts, self.shrinkage = parts, shrinkage

    def of_batch(self, z1: Tensor, z2: Tensor) -> Tensor:
        if self.parts == "feature":
            return self._part(z1.T, z2.T)
        instance = self._part(z1, z2)
        return instance if self.parts == "instance" else instance + self._part(z1.T, z2.T)

    def _part(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The part's loss of views (k, m), whose k rows are decorrelated."""
        x1, x2 = _standardised(x1, dim=1), _standardised(x2, dim=1)
        first, second = _whitening(x1, self.shrinkage) @ x1, _whitening(x2, self.shrinkage) @ x2  # (k, m)
        return (1 - (first * second).mean(1)).square().sum()


class ARBLoss(NegativeFreeLoss):
    """ARB (Zhang et al., CVPR 2022): align each view with the orthonormal base that is nearest to the other.

    ``sum_j (1 - z1_j . b2_j / N)^2 + sum_j (1 - z2_j . b1_j / N)^2`` over features that are standardised over the
    batch; the base ``b = ((1 - shrinkage) z z' / N + shrinkage I)^(-1/2) z`` carries no gradient. No more features than
    rows can be orthogonal, so a base is found for each group of features. The authors' code has groups too; their
    default size is our choice.

    Args:
        group_size: features a group; None for the largest that divides them and is at most half the rows.
        shrinkage: above 0 and below 1.
        gather: the other processes; None for one process.

    Raises:
        ValueError: a group or shrinkage out of range; in a call, groups that do not divide the features or are larger
            than the batch.

    Example:
        >>> loss = ARBLoss()
        >>> loss(torch.randn(32, 16), torch.randn(32, 16)).shape
        torch.Size([])
    """

    def __init__(self, group_size: int | None = None, shrinkage: float = 1e-4, gather: Gather | None = None) -> None:
        super().__init__(gather)
        if group_size is not None and group_size < 1:
            raise ValueError(f"group_size must be at least 1, got {group_size}")
        _check_shrinkage(shrinkage)
        self.group_size, self.shrinkage = group_size, shrinkage

    def of_batch(self, z1: Tensor, z2: Tensor) -> Tensor:
        size = self._group_of(*z1.shape)
        z1, z2 = _standardised(z1, dim=0), _standardised(z2, dim=0)
        first = (z1 * self._base(z2, size)).mean(0)  # (dim,)
        second = (z2 * self._base(z1, size)).mean(0)
        return (1 - first).square().sum() + (1 - second).square().sum()

    def _group_of(self, n: int, dim: int) -> int:
        size = self.group_size
        if size is None:
            return max(size for size in range(1, max(1, n // 2) + 1) if dim % size == 0)
        if dim % size:
            raise ValueError(f"groups of {size} do not divide {dim} features")
        if size > n:
            raise ValueError(f"{size} features cannot be orthogonal over a batch of {n} rows: take smaller groups")
        return size

    @torch.no_grad()
    def _base(self, z: Tensor, size: int) -> Tensor:
        groups = z.T.reshape(-1, size, len(z))  # (groups, size, N)
        base: Tensor = _whitening(groups, self.shrinkage) @ groups
        return base.flatten(0, 1).T  # (N, dim)


NEGATIVE_FREE: dict[str, Callable[..., NegativeFreeLoss]] = {
    "barlow_twins": BarlowTwinsLoss,
    "vicreg": VICRegLoss,
    "w_mse": WhiteningMSELoss,
    "zero_icl": partial(ZeroCLLoss, "instance"),
    "zero_fcl": partial(ZeroCLLoss, "feature"),
    "zero_cl": partial(ZeroCLLoss, "both"),
    "arb": ARBLoss,
}


def _standardised(z: Tensor, dim: int) -> Tensor:
    """Mean 0 and variance 1 along a dimension; a constant becomes 0."""
    variance, mean = torch.var_mean(z, dim, correction=0, keepdim=True)
    return (z - mean) * (variance + _VARIANCE).rsqrt()


@torch.no_grad()
def _whitening(x: Tensor, shrinkage: float) -> Tensor:
    """The symmetric (ZCA) matrices (..., k, k) that decorrelate the rows of x (..., k, m), as constants."""
    identity = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    values, vectors = torch.linalg.eigh((1 - shrinkage) * (x @ x.mT) / x.shape[-1] + shrinkage * identity)
    # exact eigenvalues are at least the shrinkage; rounding may leave one below
    root: Tensor = (vectors * values.clamp_min(shrinkage).rsqrt().unsqueeze(-2)) @ vectors.mT
    return root


def _covariance(z: Tensor) -> Tensor:
    """Of the columns, (n, dim) -> (dim, dim). ``torch.cov`` is the same, but waits for the device."""
    centred = z - z.mean(dim=0)
    return centred.T @ centred / (len(z) - 1)


def _off_diagonal_squares(matrix: Tensor) -> Tensor:
    return (matrix - matrix.diagonal().diag()).square().sum()


def _check_weights(**weights: float) -> None:
    for name, weight in weights.items():
        if not 0 <= weight < torch.inf:
            raise ValueError(f"{name} must be at least 0, got {weight}")


def _check_shrinkage(shrinkage: float) -> None:
    if not 0 < shrinkage < 1:
        raise ValueError(
            f"shrinkage must lie above 0, or small batches cannot be whitened, and below 1, got {shrinkage}"
        )
