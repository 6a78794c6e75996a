"""Students with a teacher, BYOL's and DINO's: who sees which views, and who learns."""

import pytest
import torch
from encoder_cases import as_float, colour_images, tiny_encoder

from dystress_text.training.batches import Embeddings
from vision.data.views import RandomViews
from vision.pretraining.negative_free import BYOLLoss, DINOLoss
from vision.pretraining.task import Prototypes, TeacherTask
from vision.resnet import mlp


class Halves(RandomViews):
    """Views without chance: bright and dark, and small ones that are the middle of the image."""

    def on_device(self, batch):
        images = as_float(batch["images"])
        return [images, images * 0.5, *[images[..., 4:12, 4:12] * k / 4 for k in range(self.others)]]


def make_task(kind, small=0):
    encoder = tiny_encoder()
    head, objective = (mlp(16, 32, 16), BYOLLoss()) if kind == "byol" else (Prototypes(16, 24), DINOLoss(24))
    return TeacherTask(
        encoder, Halves(colour_images(12), None, others=small), objective, momentum=0.9, autocast=torch.no_grad,
        head=head, head_in_teacher=kind == "dino",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["byol", "dino"])
def test_student_and_teacher_see_both_views_and_the_student_alone_learns(kind):
    task = make_task(kind)
    batch = task.load(torch.arange(6).numpy(), 0)
    s1, s2, t1, t2 = task.embed(task.model, batch).views
    views = torch.cat([as_float(task.views.images.images[:6]), 0.5 * as_float(task.views.images.images[:6])])
    teacher = task.key_encoder(views)
    torch.testing.assert_close(torch.cat([t1, t2]), teacher)
    assert s1.shape == s2.shape == t1.shape == (6, 16 if kind == "byol" else 24)
    torch.testing.assert_close(torch.cat([s1, s2]), task.head(task.encoder(views)))
    task.loss(Embeddings((s1, s2, t1, t2))).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.model.parameters())
    assert all(p.grad is None for p in task.key_encoder.parameters())
    own = dict(task.key_encoder.named_parameters())
    assert ("head.weight" in own) == (kind == "dino")


@pytest.mark.parametrize("kind", ["byol", "dino"])
def test_the_teachers_momentum_rises_to_one(kind):
    task = make_task(kind)
    assert [task.momentum_at(x) for x in (0, 0.5, 1)] == pytest.approx([0.9, 0.95, 1.0])
    for fraction, momentum in ((0.0, 0.9), (0.5, 0.95), (1.0, 1.0)):
        before = [p.clone() for p in task.key_encoder.parameters()]
        with torch.no_grad():
            for p in task.model.parameters():
                p.add_(1.0)
        task.begin_step(0.0, fraction)
        for old, new, student in zip(before, task.key_encoder.parameters(), task.followed.parameters(), strict=True):
            torch.testing.assert_close(new, momentum * old + (1 - momentum) * student)
