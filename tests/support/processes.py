"""Start programs and groups of processes for tests."""

import copy
import multiprocessing
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PATIENCE = 600  # seconds; a busy machine is slow


def forkserver():
    """Return a context whose processes start with the slow imports done."""
    multiprocessing.set_forkserver_preload(
        [
            "dystress_text.finetuning.fine_tune",
            "sentence_transformers",
            "transformers.models.bert",
            "processes",
        ]
    )
    return multiprocessing.get_context("forkserver")


def spawn(world_size, work, *arguments):
    """Call ``work(*arguments)`` in each of ``world_size`` processes that can form a gloo group."""
    forkserver()
    passed = (world_size, free_port(), work, *arguments)
    started = mp.start_processes(
        _process, passed, nprocs=world_size, join=False, start_method="forkserver"
    )
    deadline = time.monotonic() + PATIENCE
    while not started.join(timeout=1):
        if time.monotonic() > deadline:
            for each in started.processes:
                each.kill()
            pytest.fail("timeout")


def _process(rank, world_size, port, work, *arguments):
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    torch.set_num_threads(1)
    work(*arguments)
    if dist.is_initialized():  # a program leaves its group by itself
        dist.barrier()
        dist.destroy_process_group()


def free_port():
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def in_threads(world_size, work):
    """Return the results of ``work(gather)`` in simulated processes.

    They are threads that meet at every gather, so autograd sees the rows of all of them.
    """
    barrier = threading.Barrier(world_size, timeout=20)
    rows = [None] * world_size
    results = [None] * world_size
    errors = []

    def run(rank):
        try:
            results[rank] = work(ThreadGather(rank, barrier, rows))
        except Exception as error:
            errors.append(error)
            barrier.abort()

    with ThreadPoolExecutor(world_size) as pool:
        list(pool.map(run, range(world_size)))
    if errors:
        raise errors[0]
    return results


def own(rows, rank, world_size):
    return rows.chunk(world_size)[rank]


def losses_of_ranks(build, temperature, views, world_size, **options):
    """Return the loss of each simulated process on its share of the views."""

    def work(gather):
        loss = build(copy.deepcopy(temperature), gather=gather, **options)
        return loss(*(own(z, gather.rank, world_size) for z in views))

    return in_threads(world_size, work)


class ThreadGather:
    """Gather the rows of threads."""

    def __init__(self, rank, barrier, rows):
        self.rank = rank
        self.world_size = len(rows)
        self.barrier = barrier
        self.rows = rows

    def __call__(self, rows):
        self.rows[self.rank] = rows
        self.barrier.wait()
        gathered = torch.cat(self.rows)
        self.barrier.wait()
        return gathered


def run_main(arguments, errors):
    """Run the program in a new process, with its output in a file."""
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(errors, "w", buffering=1)  # noqa: SIM115
    from dystress_text.programs.train import main

    sys.exit(main(arguments))


def start(arguments, errors, work=run_main):
    process = forkserver().Process(target=work, args=(arguments, str(errors)))
    process.start()
    return process


def finish(process, seconds=120):
    process.join(seconds)
    if process.is_alive():
        process.kill()
        pytest.fail("timeout")
    return process.exitcode


def wait_for(condition, process=None, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.is_alive(), "it ended early"
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.01)
