"""The masked-language-model loss against transformers' own model."""

import math

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, set_dropout
from model_cases import text_reader
from processes import in_threads
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import BertForMaskedLM, RobertaForMaskedLM

from dystress_text.errors import ParameterError
from dystress_text.finetuning.corpus import load_corpus
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.finetuning.settings import TextSettings
from dystress_text.finetuning.task import TextTask
from dystress_text.finetuning.texts import plain_text
from dystress_text.losses import InfoNCELoss
from dystress_text.models.masked_lm import TokenMasking, load_lm_head
from dystress_text.programs.train import main
from dystress_text.training.batches import Embeddings

MODELS = {"bert": BertForMaskedLM, "roberta": RobertaForMaskedLM}


def tokenizer_with_mask():
    tokenizer = build_tokenizer()
    tokenizer.mask_token = "three"  # a word of the tokenizer, which has no such token
    return tokenizer


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request, tmp_path_factory):
    """Save a model with a masked-language-model head; return its folder and the model."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(3)
    model = MODELS[request.param](build_transformer(request.param).config)
    for parameter in model.parameters():  # unlike a new head's
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer_with_mask().save_pretrained(folder)
    return folder, model.eval()


@pytest.mark.parametrize("packed", [False, True])
def test_loss_equals_transformers(checkpoint, text_file, packed):
    folder, model = checkpoint
    settings = TextSettings(str(folder), pooler_type="avg", mlp_head=False, do_mlm=True)
    initial = load_initial_model(settings)
    trained = initial.embedder.train()
    set_dropout(trained, 0.0)
    table = initial.model.transformers_model.get_input_embeddings().weight
    assert any(p is table for p in trained.lm_head.parameters())  # it learns with the encoder
    task = TextTask(
        initial,
        load_corpus(plain_text(text_file), text_reader(16, model=initial.model)),
        InfoNCELoss(0.05),
        packed=packed,
        masking=TokenMasking(initial.model.tokenizer, 0.4),
        mlm_weight=0.3,
    )
    batch = task.load(np.arange(12), 0)
    labels = torch.full_like(batch["token_ids"], -100)
    labels[batch["masked_indices"]] = batch["masked_tokens"]

    def padded(values, padding=0):
        return pad_sequence(values.split(batch["lengths"].tolist()), True, padding)

    with torch.no_grad():
        expected = model(
            padded(batch["masked_ids"]),
            attention_mask=padded(torch.ones_like(labels)),
            labels=padded(labels, -100),
        ).loss
    embeddings = task.embed(task.model, batch)
    found = task.loss(embeddings) - task.objective(*embeddings.views)
    torch.testing.assert_close(found, 0.3 * expected, rtol=1e-4, atol=1e-6)


def test_masking(corpus):
    tokenizer = tokenizer_with_mask()
    samples = np.arange(200)
    batch = corpus.batch(samples)
    masking = TokenMasking(tokenizer, 0.15, seed=1)
    found = masking(batch, samples)
    ids = batch["token_ids"]
    masked = found["masked_indices"]
    assert torch.equal(ids[masked], found["masked_tokens"])
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    assert not special[masked].any()
    usable = int((~special).sum())
    share = int(found["masked_count"]) / usable
    assert abs(share - 0.15) < 4 * math.sqrt(0.15 * 0.85 / usable)
    restored = found["masked_ids"].clone()
    restored[masked] = ids[masked]
    assert torch.equal(restored, ids)
    again = masking(batch, samples)["masked_ids"]
    assert torch.equal(again, found["masked_ids"])  # as after a resumption
    assert not torch.equal(masking(batch, samples + 1)["masked_ids"], found["masked_ids"])


def test_processes_share_the_mean_over_masked_tokens(tiny_bert, corpus):
    initial = load_initial_model(TextSettings(str(tiny_bert), pooler_type="avg"))
    masking = TokenMasking(tokenizer_with_mask())
    first, second = torch.randn(2, 4, 8, dtype=torch.float64)
    totals = torch.tensor([3.0, 5.0], dtype=torch.float64)
    counts = torch.tensor([2, 9])

    def work(gather):
        objective = InfoNCELoss(0.1, gather=gather)
        task = TextTask(initial, corpus, objective, masking=masking, mlm_weight=0.5)
        i = gather.rank
        views = (first.chunk(2)[i], second.chunk(2)[i])
        return task.loss(Embeddings(views, (totals.chunk(2)[i], counts.chunk(2)[i])))

    both = sum(in_threads(2, work)) / 2
    expected = float(InfoNCELoss(0.1)(first, second)) + 0.5 * 8 / 11
    assert float(both) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("checkpoint", ["roberta"], indirect=True)
def test_trained_model_is_saved_without_the_head(checkpoint, flags, tmp_path):
    options = [
        f"--model_name_or_path={checkpoint[0]}",
        "--do_mlm",
        "--grad_cache_chunk=3",
        "--gradient_accumulation_steps=2",
        "--max_steps=2",
    ]
    assert main([*flags, *options]) == 0
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert not any("lm_head" in name for name in saved)


def test_missing_head_warns_and_unknown_family_is_rejected(tiny_bert):
    with pytest.warns(UserWarning, match="head"):
        load_lm_head(str(tiny_bert), build_transformer("bert"))
    with pytest.raises(ParameterError, match="mpnet"):
        load_lm_head("nowhere", build_transformer("mpnet"))
