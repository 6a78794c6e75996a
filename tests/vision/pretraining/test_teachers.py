"""The second encoder of MoCo, BYOL and DINO: who sees which views, who learns, and how the other
follows.
"""

import pytest
import torch
from vision_cases import as_float, colour_images, tiny_encoder

from dystress_text.losses import NTXentLoss, QueueInfoNCELoss
from vision.data.views import RandomViews
from vision.pretraining.negative_free import BYOLLoss, DINOLoss
from vision.pretraining.task import PretrainTask, Prototypes, QueueTask, TeacherTask
from vision.resnet import mlp


class BrightAndDark(RandomViews):
    """Views without chance: bright and dark."""

    def on_device(self, batch):
        images = as_float(batch["images"])
        return [images, images * 0.5]


def make_task(kind, one_pass=False):
    common = {
        "encoder": tiny_encoder(),
        "views": BrightAndDark(colour_images(12), None),
        "one_pass": one_pass,
    }
    if kind == "ntxent":
        return PretrainTask(**common, objective=NTXentLoss(0.1))
    common["momentum"] = 0.9
    if kind == "queue":
        objective = QueueInfoNCELoss(0.1, queue_size=32, dim=16)
        return QueueTask(**common, objective=objective, autocast=torch.no_grad)
    head, objective = (
        (mlp(16, 32, 16), BYOLLoss()) if kind == "byol" else (Prototypes(16, 24), DINOLoss(24))
    )
    return TeacherTask(
        **common,
        objective=objective,
        autocast=torch.no_grad,
        head=head,
        head_in_teacher=kind == "dino",
    )


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("kind", ["queue", "byol", "dino", "ntxent"])
def test_who_sees_which_views_and_who_learns(kind, one_pass):
    """Views share batch statistics in one pass alone, and never the query with its key."""
    task = make_task(kind, one_pass)
    embeddings = task.embed(task.model, task.load(torch.arange(6).numpy(), 0))
    bright = as_float(task.views.images.pixels[:6])
    parts = (
        [torch.cat([bright, 0.5 * bright])]
        if one_pass and kind != "queue"
        else [bright, 0.5 * bright]
    )
    head = getattr(task, "head", torch.nn.Identity())
    trained = torch.cat([head(task.encoder(part)) for part in parts])
    expected = [trained[:6], task.key_encoder(parts[1])] if kind == "queue" else [*trained.chunk(2)]
    if kind in ("byol", "dino"):
        expected += torch.cat([task.key_encoder(part) for part in parts]).chunk(2)
    torch.testing.assert_close(embeddings.views, tuple(expected))
    task.loss(embeddings).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.model.parameters())
    if kind != "ntxent":
        assert all(p.grad is None for p in task.key_encoder.parameters())
        assert ("head.weight" in dict(task.key_encoder.named_parameters())) == (kind == "dino")


@pytest.mark.parametrize("kind", ["queue", "byol", "dino"])
def test_it_follows_by_a_momentum_that_rises_to_one_but_for_moco(kind):
    task = make_task(kind)
    for fraction, momentum in ((0.0, 0.9), (0.5, 0.95), (1.0, 1.0)):
        momentum = 0.9 if kind == "queue" else momentum
        before = [p.clone() for p in task.key_encoder.parameters()]
        with torch.no_grad():
            for p in task.model.parameters():
                p.add_(1.0)
        task.begin_step(0.0, fraction)
        for old, new, student in zip(
            before, task.key_encoder.parameters(), task.followed.parameters(), strict=True
        ):
            torch.testing.assert_close(new, momentum * old + (1 - momentum) * student)
