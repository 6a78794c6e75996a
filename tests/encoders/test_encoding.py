"""Sentences of evaluations while training: tokenised once, batched by tokens, encoded where the encoder lies."""

import itertools
import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from trainer_cases import make_task

from dystress_text.encoders import encoder as encoders
from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.encoding import TOKENS_A_BATCH, TokenizedOnce, by_tokens
from dystress_text.encoders.saved_model import load_saved
from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.evaluation.evaluators import Evaluation, StsEvaluator, transfer_evaluator
from dystress_text.evaluation.readers import StsPairs
from dystress_text.evaluation.sts import _figures, score_vectors
from dystress_text.simcse import run as text_run
from dystress_text.train import main
from dystress_text.training.accelerator import evaluation_dtype

SENTENCES = [*make_sentences(150, seed=3), "cat", " ".join(["dog"] * 100)]  # the last one is beyond the 40 positions


class Counting:
    """A tokenizer that remembers what it was asked."""

    def __init__(self, tokenizer):
        self.tokenizer, self.asked = tokenizer, []

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, sentences, **options):
        self.asked += sentences
        return self.tokenizer(sentences, **options)


def test_batches_by_tokens_hold_each_sentence_once_and_keep_the_bound():
    lengths = np.random.default_rng(0).integers(1, 60, 500).tolist()
    batches = by_tokens([*lengths, 900], most=256)
    assert sorted(i for batch in batches for i in batch) == list(range(501))
    assert batches[-1] == [500]
    for batch, after in itertools.pairwise(batches):
        assert len(batch) * max(lengths[i] for i in batch) <= 256
        longest = ([*lengths, 900])[after[0]]
        assert longest >= max(lengths[i] for i in batch)
        assert (len(batch) + 1) * longest > 256  # the next one did not fit
    assert by_tokens([]) == []
    assert TOKENS_A_BATCH == 16_384


@pytest.mark.parametrize("side", ["right", "left"])
def test_ids_are_the_tokenizers_and_are_made_once(side):
    tokenizer = build_tokenizer()
    tokenizer.padding_side = side
    counting = Counting(tokenizer)
    tokenized = TokenizedOnce(counting, 40)
    asked = [*SENTENCES[:5], SENTENCES[2], SENTENCES[-1]]
    tokenized(asked)
    ids, mask = tokenized.padded(asked)
    assert counting.asked == [*SENTENCES[:5], SENTENCES[-1]]
    expected = tokenizer(asked, padding=True, truncation=True, max_length=40, return_tensors="pt")
    assert torch.equal(ids, expected["input_ids"])
    assert torch.equal(mask, expected["attention_mask"])


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
@pytest.mark.parametrize("pooler", ["cls", "avg_first_last"])
def test_on_a_cpu_the_vectors_are_bit_for_bit_those_of_encode(family, pooler):
    model = SentenceEncoder(build_transformer(family), pooler, True, keep_head=True)
    counting = Counting(build_tokenizer())
    tokenized = TokenizedOnce(counting, 40)
    for dtype in (torch.float32, torch.bfloat16):
        found = model.encode_again(SENTENCES, tokenized, dtype)
        assert found.dtype == torch.float32
        assert torch.equal(found, model.encode(SENTENCES, build_tokenizer(), dtype=dtype))
    assert counting.asked == SENTENCES
    assert model.training


def test_batches_by_tokens_give_the_same_vectors(monkeypatch):
    """As on an accelerator."""
    model = SentenceEncoder(build_transformer("bert"), "avg")
    expected = model.encode(SENTENCES, build_tokenizer(), batch_size=1)
    shapes, tokenized = [], TokenizedOnce(build_tokenizer(), 40)
    padded = tokenized.padded
    tokenized.padded = lambda ids: (shapes.append((len(ids), max(map(len, ids)))), padded(ids))[1]
    lengths = [len(ids) for ids in tokenized(SENTENCES)]
    monkeypatch.setattr(encoders, "by_sentences", lambda *_: by_tokens(lengths, 320))
    torch.testing.assert_close(model.encode_again(SENTENCES, tokenized), expected, rtol=0, atol=1e-6)
    assert 5 < len(shapes) < 30
    assert max(rows * longest for rows, longest in shapes) <= 320


def test_nothing_is_read_from_the_device_and_devices_do_not_mix(monkeypatch):
    """A tensor on ``meta`` has no values to read; one read would be an error. transformers itself reads one a batch."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it does not know the device
    model = SentenceEncoder(build_transformer("bert"), "avg", True, keep_head=True).to("meta")
    model._hidden_states = lambda ids, mask, all_layers: (model.transformer.embeddings(ids) * mask.unsqueeze(-1),)
    vectors = model.encode_again(SENTENCES, TokenizedOnce(build_tokenizer(), 40), torch.bfloat16)
    assert (vectors.device.type, vectors.shape) == ("meta", (len(SENTENCES), 16))
    pairs = StsPairs("x", tuple(SENTENCES[::2]), tuple(SENTENCES[1::2]), np.arange(76) % 6.0)
    figures = _figures(pairs, torch.empty(len(pairs.sentences), 16, device="meta"))
    assert [figure.device.type for figure in figures] == ["meta"] * 3
    assert figures[0].shape == (76,)


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [("cpu", "bf16", "float32"), ("cpu", "no", "float32"), ("cuda", "no", "float32"), ("cuda", "bf16", "bfloat16"),
     ("cuda", "fp16", "float16"), ("xpu", "bf16", "bfloat16")],
)  # fmt: skip
def test_only_an_accelerator_under_amp_is_evaluated_in_less_than_fp32(device, precision, expected):
    accelerator = SimpleNamespace(device=torch.device(device), mixed_precision=precision)
    assert evaluation_dtype(accelerator) == getattr(torch, expected)


def test_an_evaluation_is_what_it_is_with_the_plain_encoder_and_tokenises_once(corpus):
    task, pairs = make_task(corpus, pooler="avg"), eval_pairs("mini_sts", None)
    evaluators = [StsEvaluator(pairs), transfer_evaluator(["MiniQuestions"])]
    counting = Counting(task.tokenizer)
    task._tokenized.tokenizer = counting
    found = [Evaluation(evaluators)(task.encode) for _ in range(2)]
    assert len(counting.asked) == len(set(counting.asked)) > len(pairs.sentences)
    expected = Evaluation(evaluators)(lambda s: task.model.encode(s, task.tokenizer))
    assert found == [expected, expected]
    plain = score_vectors(pairs, task.model.encode(pairs.sentences, task.tokenizer))
    assert found[0]["mini_sts_uniformity"] == plain.uniformity


def test_the_record_of_a_run_evaluated_in_bf16_has_the_figures_of_fp32(flags, tmp_path, monkeypatch, data_dir):
    monkeypatch.setattr(text_run, "evaluation_dtype", lambda accelerator: torch.bfloat16)
    assert main([*flags, "--pooler_type=avg"]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    logged = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    (best,) = [line for line in logged if line["step"] == record["best_step"] and "loss" not in line]
    encoder, tokenizer = load_saved(tmp_path / "out")
    exact = Evaluation([StsEvaluator(eval_pairs("stsb_dev", data_dir))])(lambda s: encoder.encode(s, tokenizer))
    assert record["trained"] == exact
    assert best["sts_b_dev_uniformity"] != exact["sts_b_dev_uniformity"]
    assert best["sts_b_dev_uniformity"] == pytest.approx(exact["sts_b_dev_uniformity"], abs=0.05)
