"""The second encoder of MoCo, BYOL and DINO: what it sees, who learns, and how it follows."""

import pytest
import torch
from vision_cases import as_float, colour_images, tiny_encoder

from dystress_text.losses import NTXentLoss, QueueInfoNCELoss
from vision.data.views import RandomViews
from vision.pretraining.negative_free import BYOLLoss, DINOLoss
from vision.pretraining.task import PretrainTask, Prototypes, QueueTask, TeacherTask
from vision.resnet import mlp


class BrightAndDark(RandomViews):
    """Views without chance."""

    def on_device(self, batch):
        images = as_float(batch["images"])
        return [images, images * 0.5]


def make_task(kind, one_pass=False):
    encoder = tiny_encoder()
    views = BrightAndDark(colour_images(12), None)
    follows = {"momentum": 0.9, "autocast": torch.no_grad}
    byol = {**follows, "head": mlp(16, 32, 16), "head_in_teacher": False}
    dino = {**follows, "head": Prototypes(16, 24), "head_in_teacher": True}
    queue = QueueInfoNCELoss(0.1, queue_size=32, dim=16)
    task, objective, options = {
        "ntxent": (PretrainTask, NTXentLoss(0.1), {}),
        "queue": (QueueTask, queue, follows),
        "byol": (TeacherTask, BYOLLoss(), byol),
        "dino": (TeacherTask, DINOLoss(24), dino),
    }[kind]
    return task(encoder, views, objective, one_pass, **options)


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("kind", ["queue", "byol", "dino", "ntxent"])
def test_who_sees_which_views_and_who_learns(kind, one_pass):
    """Views share batch statistics in one pass alone, and never the query with its key."""
    task = make_task(kind, one_pass)
    embeddings = task.embed(task.model, task.load(torch.arange(6).numpy(), 0))
    bright = as_float(task.views.images.pixels[:6])
    passes = [bright, 0.5 * bright]
    if one_pass and kind != "queue":
        passes = [torch.cat(passes)]
    expected = list(torch.cat([task.model(each) for each in passes]).chunk(2))
    if kind == "queue":
        expected[1] = task.key_encoder(passes[1])
    if kind in ("byol", "dino"):
        expected += torch.cat([task.key_encoder(each) for each in passes]).chunk(2)
    torch.testing.assert_close(embeddings.views, tuple(expected))
    task.loss(embeddings).backward()
    assert all(p.grad is not None for p in task.model.parameters())
    if kind != "ntxent":
        keys = dict(task.key_encoder.named_parameters())
        assert all(p.grad is None for p in keys.values())
        assert ("head.weight" in keys) == (kind == "dino")


class WithSmall(BrightAndDark):
    """Views without chance, and a small one."""

    def on_device(self, batch):
        images = super().on_device(batch)
        return [*images, images[0][:, :, :8, :8]]


@pytest.mark.parametrize("one_pass", [False, True])
def test_the_student_alone_sees_small_views(one_pass):
    task = make_task("dino", one_pass)
    task.views = WithSmall(task.views.images, None)
    embeddings = task.embed(task.model, task.load(torch.arange(6).numpy(), 0)).views
    small = task.views.on_device(task.load(torch.arange(6).numpy(), 0))[2]
    assert len(embeddings) == 5
    torch.testing.assert_close(embeddings[2], task.model(small))


@pytest.mark.parametrize("kind", ["queue", "byol", "dino"])
def test_a_teachers_momentum_rises_to_one(kind):
    task = make_task(kind)
    for fraction, rising in ((0.0, 0.9), (0.5, 0.95), (1.0, 1.0)):
        momentum = 0.9 if kind == "queue" else rising
        before = [p.clone() for p in task.key_encoder.parameters()]
        with torch.no_grad():
            for p in task.model.parameters():
                p.add_(1.0)
        task.begin_step(0.0, fraction)
        pairs = zip(before, task.followed.parameters(), strict=True)
        expected = [momentum * old + (1 - momentum) * student for old, student in pairs]
        torch.testing.assert_close(list(task.key_encoder.parameters()), expected)
