"""The queue of past keys against a loop, with several processes, and its state."""

import pytest
import spec_formulas as spec
import torch
from loss_cases import OBJECTIVES, TEMPERATURES, assert_same, value_and_gradients
from processes import in_threads, own
from torch.nn.functional import normalize

from dystress_text.losses import QueueInfoNCELoss


def vectors(n, seed=0):
    return torch.randn(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("batch", "form"), [(1, False), (9, True)])  # 9 are more than the queue
def test_three_steps_equal_a_loop(batch, form):
    temperature, tau = TEMPERATURES["shifted"]
    loss = QueueInfoNCELoss(temperature, queue_size=7, dim=6, blockwise=form).double()
    loss.queue = normalize(loss.queue, dim=1)
    queue = [*loss.queue]
    for step in range(3):
        queries = vectors(batch, step).requires_grad_()
        keys = vectors(batch, step + 10).requires_grad_()
        rows = []
        for query, key in zip(queries, keys.detach(), strict=True):
            negatives = [spec.similarity(query, old) for old in queue]
            rows.append((spec.similarity(query, key), negatives))
        expected = OBJECTIVES["InfoNCE"].loss(rows, tau)
        inputs = [queries, keys]  # of which keys have no gradient
        assert_same(loss(queries, keys), value_and_gradients(expected, inputs), inputs)
        queue = [*queue, *keys.detach()][-7:]
    torch.testing.assert_close(loss.queue, normalize(torch.stack(queue), dim=1))
    before = loss.queue.clone()
    loss.eval()(queries, keys)
    assert torch.equal(loss.queue, before)


def test_keys_of_all_processes_enter_by_rank():
    keys = vectors(4).float()

    def work(gather):
        loss = QueueInfoNCELoss(0.1, queue_size=6, dim=6, gather=gather)
        of_rank = own(keys, gather.rank, 2)
        loss(of_rank, of_rank)
        return loss.queue

    for queue in in_threads(2, work):
        torch.testing.assert_close(queue[-4:], normalize(keys, dim=1))


def test_the_queue_is_saved_and_starts_equal_in_every_process():
    first = QueueInfoNCELoss(0.1, queue_size=5, dim=6)
    torch.manual_seed(2)
    second = QueueInfoNCELoss(0.1, queue_size=5, dim=6)
    assert torch.equal(first.queue, second.queue)
    first(vectors(2).float(), vectors(2).float())
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.queue, second.queue)
