"""The order of the samples, and loading in advance."""

import threading

import numpy as np
import pytest
import torch
from processes import wait_for

from dystress_text.errors import UserError
from dystress_text.training.batches import AHEAD, BatchOrder, count_steps, prefetch
from dystress_text.training.settings import TrainingSettings


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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (10, 10)),
        ({"max_steps": 0}, (10, 10)),
        ({"max_steps": 1}, (10, 1)),
        ({"max_steps": 25}, (10, 25)),
        ({"num_train_epochs": 2.05}, (10, 21)),
        ({"num_train_epochs": 2.0, "max_steps": 25}, (10, 20)),
        ({"num_train_epochs": 3.0, "max_steps": 25}, (10, 25)),
        ({"gradient_accumulation_steps": 3, "num_train_epochs": 0.5}, (3, 2)),
    ],
)
def test_length_of_a_run(options, expected):
    assert count_steps(10, TrainingSettings(**options)) == expected


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
        assert len(loads) <= i + 1 + AHEAD
        wait_for(lambda: len(loads) > i + AHEAD)  # noqa: B023
    with pytest.raises(OSError, match="no such picture"):
        next(loaded)
    assert threading.current_thread().name not in threads
