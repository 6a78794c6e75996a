"""The order of the samples, and loading in advance."""

import threading

import numpy as np
import pytest
import torch

from dystress_text.errors import UserError
from dystress_text.training.batches import AHEAD, BatchOrder, prefetch


def test_epoch_visits_every_sample_once():
    order = BatchOrder(size=103, batch_size=10, seed=3)
    first = order.epoch(0)
    assert first.shape == (10, 10)
    assert len(set(first.flatten())) == 100
    assert np.array_equal(first, BatchOrder(103, 10, 3).epoch(0))
    for other in (order.epoch(1), BatchOrder(103, 10, 4).epoch(0)):
        assert not np.array_equal(first, other)


def test_processes_share_the_global_batches():
    parts = [BatchOrder(103, 10, 3, rank, 5).epoch(2) for rank in range(5)]
    assert np.array_equal(np.concatenate(parts, axis=1), BatchOrder(103, 10, 3).epoch(2))


def test_batch_beyond_the_data_is_rejected():
    with pytest.raises(UserError, match="train_batch_size"):
        BatchOrder(7, 8, 0)


def test_prefetch_keeps_order_and_delays_errors():
    threads = set()
    loads = []

    def load(indices):
        threads.add(threading.current_thread().name)
        loads.append(int(indices[0]))
        if indices[0] == 30:
            raise OSError("no such picture")
        return {"x": torch.from_numpy(indices * 10)}

    loaded = prefetch(load, (np.array([i]) for i in range(100)), torch.device("cpu"))
    for i in range(30):
        assert next(loaded)["x"].tolist() == [10 * i]
        assert i < len(loads) <= i + 1 + AHEAD
    with pytest.raises(OSError, match="no such picture"):
        next(loaded)
    assert threading.current_thread().name not in threads
