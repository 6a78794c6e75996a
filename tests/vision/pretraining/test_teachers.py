"""BYOL and DINO: the losses against their formulas, processes, and what the teacher does."""

import math

import pytest
import torch
from encoder_cases import as_float, colour_images, tiny_encoder
from processes import in_threads

from dystress_text.training.batches import Embeddings
from vision.data.views import RandomViews
from vision.pretraining.teachers import BYOLLoss, DINOLoss, Prototypes, TeacherTask, predictor


def draw(n=6, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(4, n, dim, generator=generator, dtype=torch.float64))


# ---- the formulas, number by number ---------------------------------------------------------------------------------


def distance(a, b):
    """Squared, of the unit vectors."""
    lengths = [math.sqrt(math.fsum(x * x for x in v)) for v in (a, b)]
    return math.fsum((x / lengths[0] - y / lengths[1]) ** 2 for x, y in zip(a, b, strict=True))


def byol(p1, p2, t1, t2):
    rows = zip(*(z.tolist() for z in (p1, p2, t1, t2)), strict=True)
    return math.fsum(distance(a, d) + distance(b, c) for a, b, c, d in rows) / len(p1)


def softmax(logits):
    weights = [math.exp(x - max(logits)) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def cross_entropy(teacher, student, centre, cold=0.04, warm=0.1):
    p = softmax([(t - c) / cold for t, c in zip(teacher, centre, strict=True)])
    q = softmax([s / warm for s in student])
    return -math.fsum(a * math.log(b) for a, b in zip(p, q, strict=True))


def dino(*views, centre):
    """The mean over every pair of the teacher's crop and another crop of the student; the teacher's are the last."""
    *students, t1, t2 = (z.tolist() for z in views)
    return math.fsum(
        cross_entropy(t, s, centre) / (2 * (len(students) - 1) * len(t1))
        for i, teacher in enumerate((t1, t2))
        for j, student in enumerate(students)
        if i != j
        for t, s in zip(teacher, student, strict=True)
    )


def test_byol_is_its_formula():
    views = draw()
    assert BYOLLoss()(*views).item() == pytest.approx(byol(*views), rel=1e-12)


def test_dino_is_its_formula_and_the_centre_follows_the_teacher():
    loss, centre = DINOLoss(5).double(), [0.0] * 5
    for step in range(3):
        views = [0.3 * z for z in draw(seed=step)]
        assert loss(*views).item() == pytest.approx(dino(*views, centre=centre), rel=1e-10)
        mean = torch.cat(views[2:]).mean(0).tolist()
        centre = [0.9 * c + 0.1 * m for c, m in zip(centre, mean, strict=True)]
        assert loss.centre.tolist() == pytest.approx(centre, rel=1e-12)
    loss.eval()(*views)
    assert loss.centre.tolist() == pytest.approx(centre, rel=1e-12)
    fresh = DINOLoss(5)
    fresh.load_state_dict(loss.state_dict())
    assert torch.equal(fresh.centre, loss.centre.float())


@pytest.mark.parametrize("loss", [BYOLLoss(), DINOLoss(5).double().eval()])
def test_the_student_has_the_gradient_and_the_teacher_none(loss):
    views = [0.3 * z.requires_grad_() for z in draw(4)]
    p1, p2, *targets = views
    students = [p.detach().requires_grad_() for p in (p1, p2)]
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b, *targets), students)
    assert torch.autograd.grad(loss(*views).sum(), views, allow_unused=True)[2:] == (None, None)


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_mean_over_processes_is_the_single_process(world_size):
    views = [z.requires_grad_() for z in draw(12)]

    def losses(gather, own):
        objective = DINOLoss(5, gather=gather).double()
        return BYOLLoss()(*own), objective(*own), objective.centre

    single = losses(None, views)
    ranks = in_threads(world_size, lambda gather: losses(gather, [z.chunk(world_size)[gather.rank] for z in views]))
    for i, whole in enumerate(single[:2]):
        average = torch.stack([rank[i] for rank in ranks]).mean()
        torch.testing.assert_close(average, whole, rtol=1e-12, atol=0)
        found = torch.autograd.grad(average, views[:2])
        torch.testing.assert_close(found, torch.autograd.grad(whole, views[:2]), rtol=1e-10, atol=1e-14)
    for *_, centre in ranks:
        torch.testing.assert_close(centre, single[2], rtol=1e-12, atol=1e-15)


# ---- the task -------------------------------------------------------------------------------------------------------


class Halves(RandomViews):
    """Views without chance: bright and dark, and small ones that are the middle of the image."""

    def on_device(self, batch):
        images = as_float(batch["images"])
        return [images, images * 0.5, *[images[..., 4:12, 4:12] * k / 4 for k in range(self.others)]]


def make_task(kind, small=0):
    encoder = tiny_encoder()
    head, objective = (predictor(16), BYOLLoss()) if kind == "byol" else (Prototypes(16, 24), DINOLoss(24))
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
