"""A step of a text run on the meta device, which fails where a device would be read."""

import pytest
import torch
from meta_cases import META, leave_autocast_out, step, to_meta

from dystress_text.finetuning.arguments import parse
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.finetuning.task import TextTask
from dystress_text.finetuning.texts import training_text
from dystress_text.finetuning.training_data import prepare_data
from dystress_text.models.masked_lm import TokenMasking

WITH_MASK = "--model_name_or_path=bert-mini-wiki"  # a tokenizer with a mask token
SUPERVISED = "premise,hypothesis,negative\n" + "the cat sat,the cat is on the mat,a dog ran\n" * 20


@pytest.fixture(autouse=True)
def _left_out(monkeypatch):
    leave_autocast_out(monkeypatch)
    # without packing, transformers reads once a forward pass whether a batch has padding, to do
    # without a mask
    monkeypatch.setattr(
        "transformers.masking_utils._ignore_bidirectional_mask_sdpa",
        lambda *_: False,
        raising=False,
    )


def meta_run(tiny_run, folder, *more):
    """A run of batches of 8; one with supervision has texts of its own."""
    flags = [*tiny_run, f"--output_dir={folder / 'out'}", "--train_batch_size=8", *more]
    if "--supervised" in more:
        (folder / "pairs.csv").write_text(SUPERVISED)
        flags.append(f"--train_file={folder / 'pairs.csv'}")
    settings = parse(flags)
    text = training_text(settings.text)
    initial = load_initial_model(settings.text, settings.given, text)
    data = prepare_data(text, initial, settings)
    masking = TokenMasking(initial.model.tokenizer) if settings.text.do_mlm else None
    task = TextTask(initial, data.corpus, settings.loss, masking=masking)
    to_meta(task)
    return task, settings.training


def take_step(run):
    task, training = run
    learned = [*task.objective.parameters()]

    def adamw(network):
        return torch.optim.AdamW([*(p for p in network.parameters() if p.requires_grad), *learned])

    return step(task, 8, adamw, training.log_similarity, training.grad_cache_chunk)


@pytest.mark.parametrize(
    "more",
    [
        "--temp=0.05 --grad_cache_chunk=3",
        f"--do_mlm {WITH_MASK} --loss=infonce(learned(0.05),bidirectional=True)",
        "--loss=dclw(0.05) --log_similarity",
        "--supervised --loss=infonce(0.05,hard_negative_weight=0.5)",
    ],
)
def test_a_step_reads_no_device(more, tiny_run, tmp_path):
    assert take_step(meta_run(tiny_run, tmp_path, *more.split())).device == META
