"""A step of a text run with every tensor on the meta device, for want of a GPU."""

import pytest
import torch
from meta_cases import META, leave_autocast_out, step, to_meta

from dystress_text.simcse.arguments import parse
from dystress_text.simcse.run import TextRun
from dystress_text.training.accelerator import make_accelerator

WITH_MASK = "--model_name_or_path=dystress_text/embedded/bert-mini-wiki"  # a tokenizer with a mask token
SUPERVISED = "premise,hypothesis,negative\n" + "the cat sat,the cat is on the mat,a dog ran\n" * 20


@pytest.fixture(autouse=True)
def _left_out(monkeypatch):
    leave_autocast_out(monkeypatch)
    # without packing, transformers reads once a forward pass whether a batch has padding, to do without a mask
    monkeypatch.setattr("transformers.masking_utils._ignore_bidirectional_mask_sdpa", lambda *_: False, raising=False)


def meta_run(tiny_run, folder, *more):
    """A run of batches of 8; one with supervision has texts of its own."""
    flags = [*tiny_run, f"--output_dir={folder / 'out'}", "--train_batch_size=8", *more]
    if "--supervised" in more:
        (folder / "pairs.csv").write_text(SUPERVISED)
        flags.append(f"--train_file={folder / 'pairs.csv'}")
    settings = parse(flags)
    run = TextRun(settings, make_accelerator(settings.engine), lambda *_: None)
    to_meta(run.task)
    return run


def take_step(run):
    group = run.learned_temperature
    if group is not None:  # its parameters were moved
        group = {**group, "params": list(run.task.objective.temperature.parameters())}
    engine = run.settings.engine

    def adamw(network):
        return torch.optim.AdamW([p for p in network.parameters() if p.requires_grad])

    return step(run.task, 8, adamw, group, engine.log_similarity, engine.grad_cache_chunk)


@pytest.mark.parametrize(
    "more",
    ["--objective=infonce --bidirectional", "--objective=infonce --grad_cache_chunk=3",
     f"--objective=infonce --do_mlm {WITH_MASK}", "--objective=infonce --learn_temperature",
     "--objective=infonce --lora=2", "--objective=dclw --log_similarity",
     "--supervised --hard_negative_weight=0.5", "--supervised --objective=dcl"],
)  # fmt: skip
def test_a_step_reads_no_device(more, tiny_run, tmp_path):
    assert take_step(meta_run(tiny_run, tmp_path, *more.split())).device == META


def test_the_alignment_adaptive_temperature_reads_the_device_once_a_step(tiny_run, tmp_path):
    """MACL's check that its temperature is positive; the one exception."""
    with pytest.raises(RuntimeError, match="meta"):
        take_step(meta_run(tiny_run, tmp_path, "--objective=macl"))
