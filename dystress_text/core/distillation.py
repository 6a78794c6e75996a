"""A teacher's ranking of a batch, learned beside the contrastive loss: RankCSE's lists (Liu et al., ACL 2023).

An anchor's list has its similarities to the positives of all other samples of the global batch. Student and teacher
have one each; their dimensions may differ. The own positive is left out: it says nothing about the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dystress_text.core.gather import Gather
from dystress_text.core.rows import own_columns, unit_vectors

LIST_LOSSES = ("listnet", "listmle")


def list_net(student: Tensor, teacher: Tensor) -> Tensor:
    """ListNet (Cao et al., ICML 2007): cross entropy of the softmax of a list with that of the teacher's.

    Args:
        student: logits, (rows, length).
        teacher: logits of the same items.

    Returns:
        (rows,)
    """
    return -(teacher.softmax(dim=1) * student.log_softmax(dim=1)).sum(dim=1)


def list_mle(student: Tensor, teacher: Tensor) -> Tensor:
    """ListMLE (Xia et al., ICML 2008): -log of the probability that the student draws the items in the teacher's order.

    The student draws without replacement, each time from the softmax of what is left (Plackett and Luce). Of equal
    teacher's similarities the first item comes first.

    Args:
        student: logits, (rows, length).
        teacher: numbers whose order counts, the largest first; of the same items.

    Returns:
        (rows,), summed over the list.
    """
    order = teacher.argsort(dim=1, descending=True, stable=True)
    rising = student.gather(1, order).flip(1)  # the last of the order first
    return (rising.logcumsumexp(dim=1) - rising).sum(dim=1)


@dataclass(frozen=True)
class Distillation:
    """What a teacher's lists add to the loss.

    Attributes:
        kind: one of :data:`LIST_LOSSES`.
        weight: of the term.
        student_temperature: divides the student's similarities.
        teacher_temperature: divides the teacher's; ListMLE looks at their order alone.

    Raises:
        ValueError: the kind is unknown, or a number is not positive.
    """

    kind: str
    weight: float = 1.0
    student_temperature: float = 0.05
    teacher_temperature: float = 0.025

    def __post_init__(self) -> None:
        if self.kind not in LIST_LOSSES:
            raise ValueError(f"kind must be one of {', '.join(LIST_LOSSES)}, got {self.kind!r}")
        for name in ("weight", "student_temperature", "teacher_temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a positive number, got {getattr(self, name)}")

    def __call__(self, student: Sequence[Tensor], teacher: Sequence[Tensor], gather: Gather) -> Tensor:
        """The weighted mean over this process's anchors, a scalar; its average over processes is that of one process.

        Args:
            student: the views, anchors and positives first, (n, dim) each.
            teacher: the teacher's vectors of the same views, (n, any dim) each; they get no gradient.
            gather: the other processes. The whole matrix of similarities is formed, (n, N).
        """
        with torch.autocast(device_type=student[0].device.type, enabled=False):
            own = _list_of(student[0], student[1], gather) / self.student_temperature
            with torch.no_grad():
                given = _list_of(teacher[0], teacher[1], gather) / self.teacher_temperature
            loss = (list_net if self.kind == "listnet" else list_mle)(own, given.to(own.dtype))
            return self.weight * loss.mean()


def _list_of(anchors: Tensor, positives: Tensor, gather: Gather) -> Tensor:
    """Similarities of each anchor (n, dim) to the positives of the other samples, (n, N - 1)."""
    similarity = unit_vectors(anchors) @ gather(unit_vectors(positives)).T  # (n, N)
    others = torch.ones_like(similarity, dtype=torch.bool)
    others.scatter_(1, own_columns(len(anchors), gather, anchors.device).unsqueeze(1), False)
    return similarity[others].view(len(anchors), -1)
