"""The formulas of the specification on plain Python floats: explicit loops over pairs that the tests hold the code to.

Nothing here uses torch or the package under test. Vectors are lists of floats, a batch is a list of vectors.
"""

import math
from collections.abc import Callable

Vectors = list[list[float]]
Profile = Callable[[float], float]
Row = tuple[float, list[float]]  # of one anchor: the value of its positive pair, the values of its negative pairs


# ---- temperatures ---------------------------------------------------------------------------------------------------


def cosine_tau(s: float, low: float, high: float) -> float:
    return low + (high - low) / 2 * (1 + math.cos(math.pi * (1 + s)))


def shifted_tau(s: float, low: float, high: float, shift: float, k: float) -> float:
    """Alg. 2; at shift 0 the branch with the plateau on s > 0."""
    in_dip = s <= -shift if shift <= 0 else s >= -shift
    return low + (high - low) / 2 * (1 + math.cos(math.pi / k * (shift + s))) if in_dip else high


def one_sided_tau(s: float, low: float, high: float, plateau: float) -> float:
    """Version 3: half a cosine from low at -1 to high at the plateau's start."""
    return high if s >= plateau else (low + high) / 2 - (high - low) / 2 * math.cos(math.pi * (s + 1) / (plateau + 1))


def linear_tau(s: float, low: float, high: float) -> float:
    return low + (high - low) * abs(s)


def exponential_tau(s: float, low: float, high: float, c: float) -> float:
    return low + (high - low) * (1 - math.exp(-c * abs(s))) / (1 - math.exp(-c))


def monotonic_tau(s: float, low: float, high: float) -> float:
    return low + (high - low) / 2 * (1 + math.sin(math.pi * s / 2))


def even_ode_tau(s: float, low: float, high: float) -> float:
    def g(x: float) -> float:
        return x / math.log1p(x / low) if x > 0 else low

    return low + (high - low) * (g(abs(s)) - low) / (g(1.0) - low)


def slope(tau: Profile, s: float, step: float = 1e-5) -> float:
    """d tau / ds by central differences of fourth order; error about 1e-11 away from kinks."""
    return (8 * (tau(s + step) - tau(s - step)) - (tau(s + 2 * step) - tau(s - 2 * step))) / (12 * step)


# ---- rows: similarities, temperatures, logits -----------------------------------------------------------------------


def similarity(x: list[float], y: list[float]) -> float:
    """Cosine similarity; 0 where a vector is zero."""
    lengths = math.hypot(*x) * math.hypot(*y)
    return math.fsum(a * b for a, b in zip(x, y, strict=True)) / lengths if lengths > 0 else 0.0


def simcse_rows(z1: Vectors, z2: Vectors) -> list[Row]:
    """N anchors: z1_i with z2_i as its positive, all other z2_j as its negatives, in the order of j."""
    n = len(z1)
    return [(similarity(z1[i], z2[i]), [similarity(z1[i], z2[j]) for j in range(n) if j != i]) for i in range(n)]


def simclr_rows(z1: Vectors, z2: Vectors) -> list[Row]:
    """2N anchors: both views, each with the other view as its positive and the 2N - 2 views of others as negatives."""
    n, z = len(z1), z1 + z2
    rows = []
    for a in range(2 * n):
        twin = (a + n) % (2 * n)
        rows.append((similarity(z[a], z[twin]), [similarity(z[a], z[b]) for b in range(2 * n) if b not in (a, twin)]))
    return rows


def apply(function: Callable[[float], float], rows: list[Row]) -> list[Row]:
    return [(function(positive), [function(s) for s in negatives]) for positive, negatives in rows]


def divide(rows: list[Row], temperatures: list[Row]) -> list[Row]:
    """Logits s / tau, pair by pair."""
    return [
        (s_p / t_p, [s / t for s, t in zip(ss, ts, strict=True)])
        for (s_p, ss), (t_p, ts) in zip(rows, temperatures, strict=True)
    ]


# ---- objectives: from rows of logits to the mean loss ---------------------------------------------------------------


def log_sum_exp(values: list[float]) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def info_nce(rows: list[Row]) -> float:
    """Mean of -log P = log(1 + sum over the negatives of exp(negative - positive)), exact for P close to 1 too."""
    return mean([math.log1p(math.fsum(math.exp(v - positive) for v in negatives)) for positive, negatives in rows])


def decoupled(rows: list[Row], weights: list[float] | None = None) -> float:
    weights = weights or [1.0] * len(rows)
    return mean([log_sum_exp(neg) - w * pos for w, (pos, neg) in zip(weights, rows, strict=True)])


def dclw_weights(z1: Vectors, z2: Vectors, sigma: float) -> list[float]:
    """One weight per row of simclr_rows: 2 - N softmax_i(s_p / sigma), the same in both directions."""
    scores = [math.exp(similarity(x, y) / sigma) for x, y in zip(z1, z2, strict=True)]
    return [2 - len(scores) * score / math.fsum(scores) for score in scores] * 2


def macl_weights(rows: list[Row]) -> list[float]:
    """1 / (1 - P) with P the probability of the positive."""
    others = [math.fsum(math.exp(v - positive) for v in negatives) for positive, negatives in rows]  # (1 - P) / P
    return [(1 + other) / other for other in others]


def weighted_info_nce(rows: list[Row], weights: list[float]) -> float:
    return mean([w * info_nce([row]) for w, row in zip(weights, rows, strict=True)])


def adaptive_tau(z1: Vectors, z2: Vectors, tau_0: float, alpha: float, a_0: float) -> float:
    """MACL's temperature of this batch."""
    return tau_0 * (1 + alpha * (mean([similarity(x, y) for x, y in zip(z1, z2, strict=True)]) - a_0))


# ---- derivatives ----------------------------------------------------------------------------------------------------


def numeric_gradient(function: Callable[[Vectors], float], x: Vectors, step: float = 1e-4) -> Vectors:
    """Gradient by central differences of fourth order; relative error about 1e-9 for losses of size 1 to 10."""

    def at(i: int, j: int, offset: float) -> float:
        moved = [list(row) for row in x]
        moved[i][j] += offset
        return function(moved)

    return [
        [
            (8 * (at(i, j, step) - at(i, j, -step)) - (at(i, j, 2 * step) - at(i, j, -2 * step))) / (12 * step)
            for j in range(len(x[i]))
        ]
        for i in range(len(x))
    ]
