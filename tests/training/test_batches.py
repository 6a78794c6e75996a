"""The order of the samples, and loading ahead of use."""

import threading

import numpy as np
import pytest
import torch

from dystress_text.errors import UserError
from dystress_text.training.batches import AHEAD, BatchOrder, load_ahead

CPU = torch.device("cpu")


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


def test_batches_come_in_order_from_another_thread():
    threads = set()

    def load(indices):
        threads.add(threading.current_thread().name)
        return {"x": torch.from_numpy(indices * 10)}

    batches = [np.array([i, i + 1]) for i in range(7)]
    loaded = [batch["x"].tolist() for batch in load_ahead(load, batches, CPU)]
    assert loaded == [[10 * i, 10 * i + 10] for i in range(7)]
    assert threading.current_thread().name not in threads


def test_no_more_than_a_few_batches_are_loaded_ahead():
    loads = []

    def load(indices):
        loads.append(int(indices[0]))
        return {}

    loaded = load_ahead(load, (np.array([i]) for i in range(100)), CPU)
    for _ in range(3):
        next(loaded)
    loaded.close()
    assert 3 <= len(loads) <= 3 + AHEAD


def test_an_error_comes_at_its_batch():
    def load(indices):
        if indices[0] == 2:
            raise OSError("no such picture")
        return {"i": torch.tensor(indices)}

    loaded = load_ahead(load, [np.array([i]) for i in range(4)], CPU)
    assert [int(next(loaded)["i"]) for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="no such picture"):
        next(loaded)
