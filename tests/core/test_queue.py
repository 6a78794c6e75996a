"""The queue of past keys: the loss against a loop, what enters and leaves, processes, limits."""

import math

import pytest
import spec_formulas as spec
import torch
from core_cases import TEMPERATURES
from torch.nn.functional import normalize

from dystress_text.core import AlignmentAdaptiveTemperature, QueueInfoNCELoss


def vectors(n, dim=6, seed=0):
    return torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("form", [False, True])
def test_three_steps_against_a_loop(batch, form):
    temperature, tau = TEMPERATURES["shifted"]
    loss = QueueInfoNCELoss(temperature, queue_size=7, dim=6).double()
    loss.blockwise = form
    loss.queue = normalize(loss.queue, dim=1)  # of length 1 in fp64 too
    queue = loss.queue.tolist()
    for step in range(3):
        queries, keys = vectors(batch, seed=step), vectors(batch, seed=step + 10)
        losses = []
        for query, key in zip(queries.tolist(), keys.tolist(), strict=True):
            similarities = [spec.similarity(query, other) for other in [key, *queue]]
            logits = [s / tau(s) for s in similarities]
            losses.append(math.log(math.fsum(math.exp(logit - logits[0]) for logit in logits)))
        assert loss(queries, keys).item() == pytest.approx(spec.mean(losses), rel=1e-10)
        queue = [*queue, *keys.tolist()][-7:]


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("form", [False, True])
def test_gradient_of_the_queries_and_none_of_the_keys(detach, form):
    temperature, _ = TEMPERATURES["cosine"]
    loss = QueueInfoNCELoss(temperature, queue_size=9, dim=6, detach_temperature=detach).double().eval()
    loss.blockwise = form
    queries, keys = vectors(4).requires_grad_(), vectors(4, seed=1).requires_grad_()
    loss(queries, keys).backward()
    assert keys.grad is None
    leaf = queries.detach().requires_grad_()
    q, k = normalize(leaf, dim=1), normalize(keys.detach(), dim=1)
    s = torch.cat([(q * k).sum(1, keepdim=True), q @ loss.queue.T], dim=1)
    tau = temperature(s.detach() if detach else s)
    torch.nn.functional.cross_entropy(s / tau, torch.zeros(4, dtype=torch.long)).backward()
    torch.testing.assert_close(queries.grad, leaf.grad, rtol=1e-10, atol=1e-12)


def test_first_in_first_out_and_nothing_enters_in_evaluation():
    loss = QueueInfoNCELoss(0.1, queue_size=5, dim=6)
    start = loss.queue.clone()
    first, second, large = (vectors(n, seed=n).float() for n in (2, 3, 8))
    unit = [normalize(keys, dim=1) for keys in (first, second, large)]
    loss(first, first)
    torch.testing.assert_close(loss.queue, torch.cat([start[2:], unit[0]]))
    loss.eval()(second, second)
    torch.testing.assert_close(loss.queue, torch.cat([start[2:], unit[0]]))
    loss.train()(second, second)
    torch.testing.assert_close(loss.queue, torch.cat([unit[0], unit[1]]))
    loss(large, large)  # more keys than places: the last ones stay
    torch.testing.assert_close(loss.queue, unit[2][3:])


def test_all_processes_keys_enter_in_the_order_of_the_ranks():
    class TwoProcesses:
        rank, world_size = 0, 2

        def __call__(self, rows):
            return torch.cat([rows, -rows])

    loss = QueueInfoNCELoss(0.1, queue_size=6, dim=6, gather=TwoProcesses())
    keys = vectors(2).float()
    loss(keys, keys)
    unit = normalize(keys, dim=1)
    torch.testing.assert_close(loss.queue[-4:], torch.cat([unit, -unit]))


def test_the_queue_is_state_and_starts_equal_everywhere():
    torch.manual_seed(1)
    first = QueueInfoNCELoss(AlignmentAdaptiveTemperature(0.1, 0.5, 0.8), queue_size=5, dim=6)
    torch.manual_seed(2)
    second = QueueInfoNCELoss(AlignmentAdaptiveTemperature(0.1, 0.5, 0.8), queue_size=5, dim=6)
    assert torch.equal(first.queue, second.queue)
    torch.testing.assert_close(first.queue.norm(dim=1), torch.ones(5))
    first(vectors(2).float(), vectors(2).float())
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.queue, second.queue)
    assert float(second.temperature.mean_positive) == pytest.approx(1.0)
