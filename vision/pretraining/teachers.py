"""BYOL and DINO: a student predicts from one view the output of a slowly following teacher for the other view."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dystress_text.core.gather import Gather, LocalGather
from dystress_text.core.vectors import at_least_fp32
from dystress_text.training.batches import Batch, Embeddings
from vision.pretraining.task import MomentumTask
from vision.resnet import mlp

PREDICTOR_HIDDEN = 4096  # BYOL's
# solo-learn's for CIFAR and ImageNet100; DINO's paper has 65,536
PROTOTYPES = 4096


class HeadedEncoder(nn.Module):
    """An encoder and a head used in training only, (n, 3, h, w) -> (n, the head's width).

    Images of several sides go through the encoder one side after the other, and through the head together.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, *images: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([self.encoder(each) for each in images]))
        return out


@dataclass(eq=False, kw_only=True)
class TeacherTask(MomentumTask):
    """A student with a further head, and a teacher that sees the first two views alone and takes no gradient.

    The teacher's momentum rises from the given one to 1 over the run, along half a cosine (Grill et al., 2020). Both
    views go through a network in one pass, so they share batch statistics.

    Args:
        head: of the student, after the encoder.
        head_in_teacher: whether the teacher has it too (DINO's prototypes) or not (BYOL's predictor).
        **others: as for :class:`MomentumTask`; the objective takes the views of the student, then of the teacher.
    """

    head: nn.Module
    head_in_teacher: bool

    def __post_init__(self) -> None:
        self.headed = HeadedEncoder(self.encoder, self.head)
        super().__post_init__()
        self.model = self.headed

    @property
    def followed(self) -> nn.Module:
        return self.headed if self.head_in_teacher else self.encoder

    def momentum_at(self, run_fraction: float) -> float:
        return 1 - (1 - self.momentum) * (1 + math.cos(math.pi * run_fraction)) / 2

    def embed(self, model: nn.Module, batch: Batch) -> Embeddings:
        views = self.views.on_device(batch)
        large, small = torch.cat(views[:2]), views[2:]
        student = (model(large, torch.cat(small)) if small else model(large)).chunk(len(views))
        return Embeddings((*student, *self._follow(large).chunk(2)))  # each (n, the head's or the projector's width)


def predictor(dim: int) -> nn.Module:
    """BYOL's head, (n, dim) -> (n, dim): two layers with 4,096 hidden units."""
    return mlp(dim, PREDICTOR_HIDDEN, dim)


class BYOLLoss(nn.Module):
    """BYOL (Grill et al., NeurIPS 2020, Eq. 2 on both views): the distance of predictions and targets as unit vectors.

    ``mean |p1 - t2|^2 + mean |p2 - t1|^2`` over the images. Its average over processes is that of one process.

    Example:
        >>> p1, p2, t1, t2 = torch.randn(4, 8, 16)
        >>> BYOLLoss()(p1, p2, t1, t2).shape
        torch.Size([])
    """

    def forward(self, p1: Tensor, p2: Tensor, t1: Tensor, t2: Tensor) -> Tensor:
        """The loss of the student's predictions and the teacher's outputs, all (batch, dim).

        Raises:
            ValueError: other shapes.
        """
        _check_shapes(p1, p2, t1, t2)
        with torch.autocast(device_type=p1.device.type, enabled=False):
            p1, p2, t1, t2 = (F.normalize(at_least_fp32(z), dim=1) for z in (p1, p2, t1.detach(), t2.detach()))
            return ((p1 - t2).square().sum(1) + (p2 - t1).square().sum(1)).mean()


class Prototypes(nn.Module):
    """DINO's last layer, (n, dim) -> (n, count): cosines with learned vectors.

    Args:
        dim: width of the input.
        count: number of vectors.
    """

    def __init__(self, dim: int, count: int = PROTOTYPES) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, dim))

    def forward(self, z: Tensor) -> Tensor:
        with torch.autocast(device_type=z.device.type, enabled=False):  # the losses divide cosines by 0.04
            return F.linear(F.normalize(at_least_fp32(z), dim=1), F.normalize(self.weight, dim=1))


class DINOLoss(nn.Module):
    """DINO (Caron et al., ICCV 2021, Eqs. 3 and 4): match the teacher's choice of prototypes for another crop.

    The mean of ``H(P_t(x), P_s(y))`` over the images, the teacher's two large crops x and the student's other crops y,
    large and small, with the cross-entropy H, ``P_s = softmax(s / student_temperature)`` and
    ``P_t = softmax((t - centre) / teacher_temperature)``. In training mode the centre then follows the mean of the
    teacher's outputs over all processes. The warm-up of the teacher's temperature and the first epoch with fixed
    prototypes are left out.

    Args:
        prototypes: their number.
        student_temperature: 0.1, as in the paper.
        teacher_temperature: 0.04, the paper's at the start.
        centre_momentum: 0.9, as in the paper.
        gather: the other processes; None for one process.

    Raises:
        ValueError: a number out of range.

    Example:
        >>> s1, s2, t1, t2 = torch.randn(4, 8, 32)
        >>> DINOLoss(32)(s1, s2, t1, t2).shape
        torch.Size([])
    """

    centre: Tensor

    def __init__(
        self,
        prototypes: int = PROTOTYPES,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.04,
        centre_momentum: float = 0.9,
        gather: Gather | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("student_temperature", student_temperature), ("teacher_temperature", teacher_temperature)):
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        if prototypes < 2:
            raise ValueError(f"prototypes must be at least 2, or there is no choice, got {prototypes}")
        if not 0 <= centre_momentum < 1:
            raise ValueError(f"centre_momentum must lie in [0, 1), got {centre_momentum}")
        self.student_temperature, self.teacher_temperature = student_temperature, teacher_temperature
        self.centre_momentum = centre_momentum
        self.gather: Gather = gather or LocalGather()
        self.register_buffer("centre", torch.zeros(prototypes))

    def forward(self, s1: Tensor, s2: Tensor, *others: Tensor) -> Tensor:
        """The loss of the outputs for each crop, all (batch, prototypes).

        Args:
            s1: the student's for the first large crop.
            s2: its for the second one.
            others: its for any number of small crops, then the teacher's for the two large ones.

        Raises:
            ValueError: other shapes, or no two outputs of the teacher.
        """
        _check_shapes(s1, s2, *others)
        if len(others) < 2:
            raise ValueError(f"the teacher's outputs for two crops are needed, got {len(others)}")
        if s1.shape[1] != len(self.centre):
            raise ValueError(f"the centre has {len(self.centre)} prototypes, the outputs {s1.shape[1]}")
        *small, t1, t2 = others
        with torch.autocast(device_type=s1.device.type, enabled=False):
            student = [F.log_softmax(at_least_fp32(s) / self.student_temperature, dim=1) for s in (s1, s2, *small)]
            outputs = [at_least_fp32(t.detach()) for t in (t1, t2)]
            teacher = [torch.softmax((t - self.centre) / self.teacher_temperature, dim=1) for t in outputs]
            terms = [-(t * s).sum(1) for i, t in enumerate(teacher) for j, s in enumerate(student) if i != j]
            loss = torch.stack(terms).mean()
            if self.training:
                mean = self.gather(torch.cat(outputs).mean(0, keepdim=True)).mean(0)  # (prototypes,)
                self.centre = torch.lerp(mean.to(self.centre), self.centre, self.centre_momentum)
        return loss


def _check_shapes(*views: Tensor) -> None:
    if any(z.ndim != 2 for z in views) or len({tuple(z.shape) for z in views}) != 1:
        shapes = ", ".join(str(tuple(z.shape)) for z in views)
        raise ValueError(f"student's and teacher's outputs must all have one shape (batch, dim), got {shapes}")
