"""Gradient caching: the whole batch's gradient from chunks of it."""

import pytest
import torch
from trainer_cases import log_of, make_task, run, weights

from dystress_text.losses import AlignmentAdaptiveTemperature, MACLLoss, NTXentLoss
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.batches import Embeddings, backward_in_chunks
from dystress_text.training.settings import TrainingSettings


def train(corpus, folder, objective, **options):
    task = make_task(corpus, objective=objective)
    task.model.double()
    run(task, folder, max_steps=5, logging_steps=1, **options)
    return weights(task), log_of(folder, "loss")


@pytest.mark.parametrize(
    ("objective", "chunk", "accumulation"),
    [(NTXentLoss(0.1), 5, 3), (MACLLoss(AlignmentAdaptiveTemperature(0.05, 0.2, 0.8)), 1, 1)],
)
def test_chunks_equal_the_whole_batch(chunk, accumulation, objective, tmp_path, corpus):
    options = {"objective": objective, "gradient_accumulation_steps": accumulation}
    expected, curve = train(corpus, tmp_path / "whole", **options)
    found, chunked = train(corpus, tmp_path / "chunks", grad_cache_chunk=chunk, **options)
    assert chunked == pytest.approx(curve, rel=1e-10)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-8, atol=1e-10)


def test_dropout_is_replayed(tmp_path, corpus):
    """The gradient equals that of one plain pass over the same chunks with the same seed."""
    task = make_task(corpus, dropout=0.3)
    task.model.double().train()
    chunks = [task.load(torch.arange(i, i + 4).numpy(), 0) for i in range(0, 12, 4)]
    torch.manual_seed(5)
    views = [task.embed(task.model, chunk).views for chunk in chunks]
    after = torch.get_rng_state()
    task.loss(Embeddings(tuple(map(torch.cat, zip(*views, strict=True))))).backward()
    expected = {name: p.grad for name, p in task.model.named_parameters() if p.grad is not None}
    task.model.zero_grad()
    accelerator = make_accelerator(TrainingSettings(output_dir=str(tmp_path), mixed_precision="no"))
    torch.manual_seed(5)
    backward_in_chunks(task.embed, task.loss, task.model, chunks, accelerator)
    assert torch.equal(after, torch.get_rng_state())  # as if the batch had been embedded once
    parameters = dict(task.model.named_parameters())
    for name, gradient in expected.items():
        torch.testing.assert_close(parameters[name].grad, gradient, rtol=1e-9, atol=1e-12)
