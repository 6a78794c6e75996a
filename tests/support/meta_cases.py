"""A training step whose tensors are all on the meta device: it fails where devices mix, or where
the host reads one.
"""

import contextlib

import numpy as np
import torch

from dystress_text.training.batches import backward_in_chunks, to_device
from dystress_text.training.similarity_log import SimilarityLog

META = torch.device("meta")


class MetaAccelerator:
    """What gradient caching needs of an accelerator; meta has no random state, so the CPU's."""

    device = torch.device("cpu")

    @staticmethod
    def backward(loss):
        loss.backward()

    @staticmethod
    def no_sync(model):
        return torch.enable_grad()


def to_meta(task):
    """Move a task to the meta device; a run builds it on the device of the trainer."""
    task.model.to(META)
    task.state.to(META)


def step(task, batch_size, make_optimizer, watch=False, chunk=None):
    """Take a training step on the meta device, as the trainer does; return the loss."""
    optimizer = make_optimizer(task.model)
    similarity_log = SimilarityLog(task.objective) if watch else None
    task.begin_step(0.0, 0.0)
    rows = np.arange(batch_size)
    parts = np.split(rows, range(chunk, batch_size, chunk)) if chunk else [rows]
    chunks = [to_device(task.load(part, 0), META) for part in parts]
    task.model.train()
    if chunk:
        loss = backward_in_chunks(task.embed, task.loss, task.model, chunks, MetaAccelerator())
    else:
        loss = task.loss(task.embed(task.model, chunks[0]))
        loss.backward()
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if similarity_log is not None:
        similarity_log.end_step()
    return loss


def leave_autocast_out(monkeypatch):
    """torch's autocast does not know the meta device; the code under test names it in fp32 too."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device_type=None: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
