"""Gradient caching: the whole batch's gradient from chunks of it."""

import pytest
import torch
from trainer_cases import log_of, make_task, run, weights

from dystress_text.losses import MACLLoss, NTXentLoss
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.batches import Embeddings, backward_in_chunks
from dystress_text.training.settings import TrainingSettings


def train(corpus, folder, chunk, dropout=0.0, objective=None, **options):
    task = make_task(corpus, dropout)
    task.model.double()
    if objective is not None:
        task.objective = objective
    options = {
        "train_batch_size": 12,
        "max_steps": 5,
        "logging_steps": 1,
        "grad_cache_chunk": chunk,
        **options,
    }
    run(task, corpus, folder, **options)
    return weights(task), log_of(folder, "loss")


@pytest.mark.parametrize(
    ("objective", "chunk", "accumulation"),
    [(None, 4, 1), (None, 5, 3), (NTXentLoss(0.1), 5, 1), (MACLLoss(0.05, 0.2, 0.8), 1, 1)],
)
def test_chunks_train_as_the_whole_batch(chunk, accumulation, objective, tmp_path, corpus):
    options = {"objective": objective, "gradient_accumulation_steps": accumulation}
    expected, curve = train(corpus, tmp_path / "whole", None, **options)
    found, chunked = train(corpus, tmp_path / "chunks", chunk, **options)
    assert chunked == pytest.approx(curve, rel=1e-10)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-8, atol=1e-10)


def test_dropout_is_replayed(tmp_path, corpus):
    """With one chunk's random numbers as seen by a plain pass over the same chunks, the gradient is
    the plain one.
    """
    task = make_task(corpus, dropout=0.3)
    task.model.double().train()
    chunks = [task.load(torch.arange(i, i + 4).numpy(), 0) for i in range(0, 12, 4)]
    torch.manual_seed(5)
    views = [task.embed(task.model, chunk) for chunk in chunks]
    whole = zip(*(found.views for found in views), strict=True)
    loss = task.loss(Embeddings(tuple(torch.cat(chunks) for chunks in whole)))
    loss.backward()
    expected = {
        name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None
    }
    task.model.zero_grad()

    accelerator = make_accelerator(TrainingSettings(output_dir=str(tmp_path), mixed_precision="no"))
    torch.manual_seed(5)
    cached = backward_in_chunks(task.embed, task.loss, task.model, chunks, accelerator)
    after = torch.get_rng_state()
    assert cached.item() == pytest.approx(loss.item(), rel=1e-12)
    for name, p in task.model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, expected[name], rtol=1e-9, atol=1e-12)
    torch.manual_seed(5)
    for chunk in chunks:
        task.embed(task.model, chunk)
    assert torch.equal(after, torch.get_rng_state())  # as if the batch had been embedded once
