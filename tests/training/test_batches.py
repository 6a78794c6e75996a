"""The order of the samples, and loading ahead of use."""

import threading

import numpy as np
import pytest
import torch

from dystress_text.errors import UserError
from dystress_text.training.batches import AHEAD, BatchOrder, prefetch


def test_an_epoch_visits_every_sample_once_and_epochs_differ():
    order = BatchOrder(size=103, batch_size=10, seed=3)
    first, second = order.epoch(0), order.epoch(1)
    assert first.shape == (10, 10)
    assert len(set(first.flatten())) == 100
    assert not np.array_equal(first, second)
    assert np.array_equal(first, BatchOrder(103, 10, 3).epoch(0))
    assert not np.array_equal(first, BatchOrder(103, 10, 4).epoch(0))


def test_processes_share_the_global_batches():
    world_size = 5
    whole = BatchOrder(103, 10, seed=3).epoch(2)
    parts = [BatchOrder(103, 10, 3, rank, world_size).epoch(2) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)


def test_a_batch_beyond_the_data_names_the_option():
    with pytest.raises(UserError, match="train_batch_size: 8 exceeds the 7"):
        BatchOrder(7, 8, 0)


def test_another_thread_loads_batches_ahead_in_order_and_an_error_comes_at_its_batch():
    threads, loads = set(), []

    def load(indices):
        threads.add(threading.current_thread().name)
        loads.append(int(indices[0]))
        if indices[0] == 30:
            raise OSError("no such picture")
        return {"x": torch.from_numpy(indices * 10)}

    loaded = prefetch(load, (np.array([i, i + 1]) for i in range(100)), torch.device("cpu"))
    for i in range(30):
        assert next(loaded)["x"].tolist() == [10 * i, 10 * i + 10]
        assert i < len(loads) <= i + 1 + AHEAD
    with pytest.raises(OSError, match="no such picture"):
        next(loaded)
    assert threading.current_thread().name not in threads
