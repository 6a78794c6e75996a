"""Every objective against explicit loops over pairs of plain floats: values, gradients, hard negatives, processes."""

import pytest
import spec_formulas as spec
import torch
from core_cases import OBJECTIVES, PROFILES, TEMPERATURES, lists, views
from gather_cases import losses_of_ranks

from dystress_text.core import (
    AlignmentAdaptiveTemperature,
    ConstantTemperature,
    InfoNCELoss,
    MACLLoss,
    NTXentLoss,
    blockwise,
)

EVERY = pytest.mark.parametrize("name", OBJECTIVES)
DETACH = pytest.mark.parametrize("detach", [True, False], ids=["detached", "in the graph"])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blockwise, "CPU_BLOCK", 4)


def oracle(case, tau, detach, bonus, z):
    """The loss as a function of the views' lists, detached parts held fixed at their values for ``z``."""
    n, hard = len(z[0]), len(z) - 2
    fixed = spec.apply(tau, case.rows(*lists(z)))
    weights = case.weights(*lists(z)[:2], case.logits(case.rows(*lists(z)), fixed, n, hard, bonus))

    def loss_of(vectors):
        rows = case.rows(*(vectors[i : i + n] for i in range(0, len(vectors), n)))
        return case.loss(case.logits(rows, fixed if detach else spec.apply(tau, rows), n, hard, bonus), weights)

    return loss_of


@EVERY
@DETACH
@pytest.mark.parametrize("temperature", ["constant", "shifted"])
@pytest.mark.parametrize("hard", [0, 2])
def test_loss_and_gradient_are_those_of_the_loop_over_pairs(name, temperature, detach, hard):
    case, (module, tau) = OBJECTIVES[name], TEMPERATURES[temperature]
    z = views(5, 3, 2 + hard)
    by_loop = oracle(case, tau, detach, 0.7, z)
    vectors = [row for view in lists(z) for row in view]
    expected = torch.tensor(spec.numeric_gradient(by_loop, vectors), dtype=torch.float64)
    for form in (False, True):
        value = case.build(module, detach_temperature=detach, hard_negative_weight=0.7, blockwise=form)(*z)
        assert value.shape == ()
        assert value.item() == pytest.approx(by_loop(vectors), rel=1e-10)
        gradient = torch.cat(torch.autograd.grad(value, z))
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-7 * float(expected.abs().max()))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_gradcheck(temperature):
    for name in ("InfoNCE", "NT-Xent", "DCL"):
        loss = OBJECTIVES[name].build(TEMPERATURES[temperature][0], detach_temperature=False)
        assert torch.autograd.gradcheck(loss, views(4, 3, 3), fast_mode=True)


@EVERY
@pytest.mark.parametrize("form", [False, True])
def test_the_mean_over_processes_is_the_single_process(name, form):
    """Simulated processes: threads that meet at every gather, so that autograd sees the rows of all of them."""
    build = OBJECTIVES[name].build
    for world_size, rows, count, temperature in ((3, 2, 4, TEMPERATURES["shifted"][0]), (2, 3, 2, adaptive())):
        z = views(world_size * rows, 4, count)
        single = build(temperature, hard_negative_weight=0.7, blockwise=False)(*z)
        ranks = losses_of_ranks(build, temperature, z, world_size, hard_negative_weight=0.7, blockwise=form)
        assert len({loss.item() for loss in ranks}) == world_size  # each has its own rows
        average = torch.stack(ranks).mean()
        torch.testing.assert_close(average, single, rtol=1e-12, atol=0)
        found, expected = (torch.autograd.grad(value, z) for value in (average, single))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)


def adaptive():
    return AlignmentAdaptiveTemperature(0.1, 0.8, 0.6)


@pytest.mark.parametrize("both_views", [False, True])
@DETACH
def test_macl_takes_its_temperature_from_the_batch_without_a_gradient(both_views, detach):
    loss, case = MACLLoss(0.1, 0.8, 0.6, both_views=both_views, detach_temperature=detach), "MACL"
    case = OBJECTIVES["MACL, both views" if both_views else "MACL"]
    for seed in (0, 1, 0):  # each batch has its own; nothing lingers
        z = views(4, 3, seed=seed)
        tau = spec.adaptive_tau(*lists(z), 0.1, 0.8, 0.6)
        by_loop, vectors = oracle(case, lambda s, tau=tau: tau, True, 0.0, z), lists(z)[0] + lists(z)[1]
        value = loss(*z)
        assert value.item() == pytest.approx(by_loop(vectors), rel=1e-10)
        expected = torch.tensor(spec.numeric_gradient(by_loop, vectors), dtype=torch.float64)
        torch.testing.assert_close(torch.cat(torch.autograd.grad(value, z)), expected, rtol=1e-7, atol=1e-7)
    assert any(key.startswith("temperature.") for key in loss.state_dict())  # saved with the loss


@pytest.mark.parametrize("count", [2, 4])
def test_info_nce_is_sentence_transformers_multiple_negatives_ranking_loss(count):
    from sentence_transformers.losses import MultipleNegativesRankingLoss  # takes seconds to import

    z = [x.detach().float() for x in views(16, 12, count)]
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    for bidirectional, how in ((False, {}), (True, both)):
        theirs = MultipleNegativesRankingLoss(model=None, scale=20.0, **how)
        expected = float(theirs.compute_loss_from_embeddings(z, labels=None))
        assert float(InfoNCELoss(0.05, bidirectional=bidirectional)(*z)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_ends_are_exactly_the_constant_temperature_and_a_number(profile, dtype):
    z = [x.detach().to(dtype).requires_grad_() for x in views(6, 5)]
    losses = [NTXentLoss(temperature)(*z) for temperature in (profile(0.07, 0.07), ConstantTemperature(0.07), 0.07)]
    gradients = [torch.autograd.grad(loss, z) for loss in losses]
    for value, gradient in zip(losses[1:], gradients[1:], strict=True):
        assert torch.equal(value, losses[0])
        assert all(torch.equal(a, b) for a, b in zip(gradient, gradients[0], strict=True))
