"""Pairs that a guide finds alike are no negatives: loops over explicit pairs in fp64, and sentence-transformers."""

from types import SimpleNamespace

import numpy as np
import pytest
import rule_loops as loops
import torch
from core_cases import compared
from gather_cases import own
from processes import in_threads
from rule_cases import RULES

from dystress_text.core import DCLLoss, InfoNCELoss, NTXentLoss, SigLIPLoss, blockwise
from dystress_text.core.diagnosis import pair_sums
from dystress_text.core.gather import LocalGather
from dystress_text.core.guide import GuideRule

FORMS = pytest.mark.parametrize("form", [False, True], ids=["plain", "blockwise"])
LAYOUTS = {  # the objective, and its anchors and candidates as (view, sample)
    "InfoNCE": (
        InfoNCELoss,
        lambda n, h: ([(0, i) for i in range(n)], [(1 + k, j) for k in range(1 + h) for j in range(n)]),
    ),
    "NT-Xent": (
        NTXentLoss,
        lambda n, h: ([(v, i) for v in (0, 1) for i in range(n)], [(v, j) for v in range(2 + h) for j in range(n)]),
    ),
}
RULES_OF_GUIDE = {
    "threshold": GuideRule(threshold=0.3),
    "quantile": GuideRule(quantile=0.7),
    "margin": GuideRule(margin=0.2),
    "relative margin": GuideRule(margin=0.4, relative=True),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blockwise, "CPU_BLOCK", 4)


def views(n, dim, count, seed=0):
    generator = torch.Generator().manual_seed(100 * n + dim + seed)
    base = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    drawn = [base + 0.7 * torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [z.requires_grad_() for z in drawn]


def threshold_by_hand(name, cosine, n, sample):
    if name == "threshold":
        return 0.3
    if name == "quantile":
        return np.quantile([cosine((0, i), (1, j)) for i in range(n) for j in range(n) if i != j], 0.7)
    own_positive = cosine((0, sample), (1, sample))
    return own_positive - 0.2 if name == "margin" else own_positive - 0.4 * abs(own_positive)


def rows_by_hand(layout, name, z, g, ids=None):
    """Each anchor's positive and the negatives that guide and ids leave; and how many only the guide spares."""
    n, spared, rows = len(z[0]), 0, []

    def cosine(a, b):
        return loops.similarity(g[a[0]][a[1]], g[b[0]][b[1]]).item()

    anchors, candidates = LAYOUTS[layout][1](n, len(z) - 2)
    for view, i in anchors:
        negatives, twin = [], 1 - view
        for other, j in candidates:
            if j == i and other in (view, twin):
                continue
            if ids is not None and ids[j] == ids[i]:
                continue
            if cosine((view, i), (other, j)) > threshold_by_hand(name, cosine, n, i):
                spared += 1
                continue
            negatives.append(loops.similarity(z[view][i], z[other][j]))
        rows.append((loops.similarity(z[view][i], z[twin][i]), negatives))
    return rows, spared


def of_rows(rows, row_loss):
    zero = rows[0][0] * 0
    return loops.mean([row_loss(pos, negs) if negs else zero for pos, negs in rows])


def assert_same(found, expected, limit=1e-10):
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm().item() <= limit * max(y.norm().item(), 1e-12), (x, y)


@FORMS
@pytest.mark.parametrize("rule", RULES_OF_GUIDE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_guided_loss_is_its_loop_over_pairs(layout, rule, form):
    """With hard negatives and duplicates, and a guide of another dimension."""
    row_loss = RULES["no bias"][1]  # plain InfoNCE at 0.2
    ids = torch.tensor([0, 1, 2, 3, 1, 5, 6])
    for count in (2, 3):
        z, g = views(7, 3, count), views(7, 5, count, seed=1)
        rows, spared = rows_by_hand(layout, rule, z, g, ids)
        expected = of_rows(rows, row_loss)
        loss = LAYOUTS[layout][0](0.2, blockwise=form)
        loss.guided = torch.zeros(1, dtype=torch.int64)
        found = loss(*z, ids=[ids] * count, guide=RULES_OF_GUIDE[rule](g, LocalGather()))
        assert_same([found, *torch.autograd.grad(found, z)], [expected, *torch.autograd.grad(expected, z)])
        assert int(loss.guided) == spared > 0


@FORMS
@pytest.mark.parametrize("name", RULES)
def test_every_rule_on_pairs_takes_a_guide(name, form):
    """Those that need the number of negatives, too."""
    rule, row_loss = RULES[name]
    z, g = views(7, 3, 2), views(7, 5, 2, seed=1)
    expected = of_rows(rows_by_hand("NT-Xent", "quantile", z, g)[0], row_loss)
    loss = NTXentLoss(rule(), detach_temperature=name != "temo", blockwise=form)
    found = loss(*z, guide=RULES_OF_GUIDE["quantile"](g, LocalGather()))
    assert_same([found, *torch.autograd.grad(found, z)], [expected, *torch.autograd.grad(expected, z)])


@FORMS
@pytest.mark.parametrize("build", [InfoNCELoss, NTXentLoss, DCLLoss, lambda tau, **more: SigLIPLoss(**more)])
def test_a_batch_whose_pairs_are_all_alike_costs_nothing(build, form):
    z = views(5, 3, 2)
    loss = build(0.1, blockwise=form)(*z, guide=GuideRule(threshold=-1)([torch.ones(5, 2)] * 2, LocalGather()))
    assert float(loss) == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(loss, z))


@pytest.mark.parametrize("strategy", ["absolute", "relative"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_margin_is_sentence_transformers(count, strategy):
    from sentence_transformers.sentence_transformer.losses import gist_embed  # takes seconds to import

    z, g = views(7, 3, count), views(7, 5, count, seed=1)
    theirs = SimpleNamespace(
        guide=None, model=None, must_retokenize=False, gather_across_devices=False, temperature=0.1, margin=0.3,
        margin_strategy=strategy, contrast_anchors=False, contrast_positives=False,
        sim_matrix=lambda a, b: torch.nn.CosineSimilarity(dim=-1)(a.unsqueeze(1), b.unsqueeze(0)),
        cross_entropy_loss=torch.nn.CrossEntropyLoss(),
    )  # fmt: skip
    answers = iter([z, g])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gist_embed, "embed_columns", lambda model, features: next(answers))
        expected = gist_embed.GISTEmbedLoss.forward(theirs, [{}] * count, None)
    rule = GuideRule(margin=0.3, relative=strategy == "relative")
    found = InfoNCELoss(0.1)(*z, guide=rule(g, LocalGather()))
    unguided = InfoNCELoss(0.1)(*z)
    assert float(found) < float(unguided)
    assert_same([found, *torch.autograd.grad(found, z)], [expected, *torch.autograd.grad(expected, z)])


@pytest.mark.parametrize("form", [False, True])
@pytest.mark.parametrize("rule", ["quantile", "margin"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_processes_are_one(layout, rule, form):
    z, g = views(6, 3, 3), views(6, 5, 3, seed=1)
    guide, build = RULES_OF_GUIDE[rule], LAYOUTS[layout][0]
    single = build(0.1)
    single.guided = torch.zeros(1, dtype=torch.int64)
    expected = single(*z, guide=guide(g, LocalGather()))

    def work(gather):
        loss = build(0.1, gather=gather, blockwise=form)
        loss.guided = torch.zeros(1, dtype=torch.int64)
        mine = ([own(x, gather.rank, 2) for x in vectors] for vectors in (z, g))
        value = loss(*next(mine), guide=guide(next(mine), gather))
        return value, int(loss.guided)

    values, counts = zip(*in_threads(2, work), strict=True)
    found = torch.stack(values).mean()
    assert_same([found, *torch.autograd.grad(found, z)], [expected, *torch.autograd.grad(expected, z)])
    assert set(counts) == {int(single.guided)}


def test_the_log_and_the_comparison_see_only_negatives():
    z, g = views(7, 3, 2), views(7, 5, 2, seed=1)
    guide, seen = RULES_OF_GUIDE["quantile"](g, LocalGather()), []
    loss = NTXentLoss(0.1)
    loss.observer = lambda z, sums, negatives, row_loss: seen.append(
        pair_sums(z, sums, negatives, row_loss, loss.temperature, True, 0.4)
    )
    loss(*z, guide=guide)
    negatives = [s for _, negs in rows_by_hand("NT-Xent", "quantile", z, g)[0] for s in negs]
    assert float(seen[0].counts[1]) == len(negatives)
    assert float(seen[0].similarities[1]) == pytest.approx(float(loops.total(negatives)), rel=1e-10)
    found = compared(NTXentLoss(0.1), *z, guide=guide)
    assert float(found.moved[torch.logspace(-2, 0, 41).sub(0.1).abs().argmin()]) == pytest.approx(0, abs=1e-9)
    assert float(found.pull) == pytest.approx(1, abs=1e-9)


def test_the_quantile_of_a_large_batch_is_nearly_that_of_all_pairs():
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(1500, 8, generator=generator)
    units = torch.nn.functional.normalize(g.double()).numpy()
    exact = np.quantile((units @ units.T)[~np.eye(1500, dtype=bool)], 0.9)
    assert float(GuideRule(quantile=0.9)([g, g], LocalGather()).threshold) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("options", [{}, {"threshold": 0.5, "quantile": 0.5}, {"quantile": 1.0}, {"threshold": 2.0}])
def test_a_rule_that_is_none_is_refused(options):
    with pytest.raises(ValueError, match=r"threshold|quantile"):
        GuideRule(**options)
