"""The masked-language-model loss against transformers' own model."""

import math

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, set_dropout
from processes import in_threads
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import BertForMaskedLM, RobertaForMaskedLM

from dystress_text.config.settings import TextSettings
from dystress_text.data.corpus import load_corpus
from dystress_text.data.texts import plain_text
from dystress_text.errors import ParameterError
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.finetuning.task import SimcseTask
from dystress_text.losses import InfoNCELoss
from dystress_text.models.masked_lm import TokenMasking, load_lm_head
from dystress_text.programs.train import main
from dystress_text.training.batches import Embeddings

ROWS = np.arange(12)
MASK = "three"  # a word of the tokenizer, which has no token of its own for it
MLM_LOSS = {"bert": BertForMaskedLM, "roberta": RobertaForMaskedLM}


@pytest.fixture(scope="module", params=MLM_LOSS)
def checkpoint(request, tmp_path_factory):
    """A model with a head of its own, and its tokenizer, in a folder."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(3)
    model = MLM_LOSS[request.param](build_transformer(request.param).config)
    for parameter in model.parameters():  # no head is as it was made
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer = build_tokenizer()
    tokenizer.mask_token = MASK
    tokenizer.save_pretrained(folder)
    return folder, model.eval()


@pytest.mark.parametrize("packed", [False, True])
def test_loss_equals_transformers(checkpoint, text_file, packed):
    folder, model = checkpoint
    settings = TextSettings(str(folder), pooler_type="avg", mlp_head=False, do_mlm=True)
    initial = load_initial_model(settings)
    embedder = initial.embedder
    set_dropout(embedder, 0.0)
    table = embedder.model[0].model.get_input_embeddings().weight
    own = embedder.lm_head.parameters()
    assert any(p is table for p in own)  # which learns with the encoder
    corpus = load_corpus(plain_text(text_file), initial.tokenizer, 16)
    masking = TokenMasking(initial.tokenizer, 0.4)
    task = SimcseTask(
        initial, corpus, InfoNCELoss(0.05), packed=packed, masking=masking, mlm_weight=0.3
    )
    assert task.packed == packed
    embedder.train()
    batch = task.load(ROWS, 0)
    wanted = torch.full_like(batch["token_ids"], -100)
    wanted[batch["masked_indices"]] = batch["masked_tokens"]
    lengths = batch["lengths"].tolist()
    ids, mask, labels = (
        pad_sequence(x.split(lengths), True, padding)
        for x, padding in ((batch["masked_ids"], 0), (torch.ones_like(wanted), 0), (wanted, -100))
    )
    with torch.no_grad():
        theirs = model(ids, attention_mask=mask, labels=labels).loss
    embeddings = task.embed(task.model, batch)
    contrast = task.objective(*embeddings.views)
    torch.testing.assert_close(task.loss(embeddings) - contrast, 0.3 * theirs, rtol=1e-4, atol=1e-6)


def test_masked_tokens_are_the_batchs(corpus):
    tokenizer = build_tokenizer()
    tokenizer.mask_token = MASK
    batch = corpus.batch(np.arange(200))
    masking = TokenMasking(tokenizer, 0.15, seed=1)
    found = masking(batch, np.arange(200))
    ids, hidden = batch["token_ids"], found["masked_indices"]
    assert torch.equal(ids[hidden], found["masked_tokens"])
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    assert not special[hidden].any()
    usable, count = int((~special).sum()), len(hidden)
    assert count == int(found["masked_count"])
    assert abs(count / usable - 0.15) < 4 * math.sqrt(0.15 * 0.85 / usable)
    restored = found["masked_ids"].clone()
    restored[hidden] = ids[hidden]
    assert torch.equal(restored, ids)
    assert torch.equal(
        masking(batch, np.arange(200))["masked_ids"], found["masked_ids"]
    )  # as after a resumption
    assert not torch.equal(masking(batch, np.arange(1, 201))["masked_ids"], found["masked_ids"])


def test_processes_share_the_mean_over_masked_tokens(tiny_bert, corpus):
    initial = load_initial_model(TextSettings(str(tiny_bert), pooler_type="avg"))
    initial.tokenizer.mask_token = MASK
    z = torch.randn(2, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    totals, counts = torch.tensor([3.0, 5.0], dtype=torch.float64), torch.tensor([2, 9])

    def work(gather):
        objective = InfoNCELoss(0.1, gather=gather)
        masking = TokenMasking(initial.tokenizer)
        task = SimcseTask(initial, corpus, objective, masking=masking, mlm_weight=0.5)
        views, own = z[:, 2 * gather.rank :][:, :2], slice(gather.rank, gather.rank + 1)
        return task.loss(Embeddings((views[0], views[1]), (totals[own], counts[own])))

    both = sum(in_threads(2, work)) / 2
    assert float(both) == pytest.approx(float(InfoNCELoss(0.1)(*z)) + 0.5 * 8 / 11, rel=1e-12)


def test_trained_model_is_saved_without_the_head(checkpoint, flags, tmp_path):
    given = [flag for flag in flags if not flag.startswith("--model_name")]
    more = ["--grad_cache_chunk=3", "--gradient_accumulation_steps=2"]
    assert (
        main(
            [*given, f"--model_name_or_path={checkpoint[0]}", "--do_mlm", "--mlm_weight=0.2", *more]
        )
        == 0
    )
    assert not any("lm_head" in name for name in load_file(tmp_path / "out" / "model.safetensors"))


def test_missing_head_warns_and_unknown_family_is_rejected(tiny_bert):
    with pytest.warns(UserWarning, match="head"):
        load_lm_head(str(tiny_bert), build_transformer("bert"))
    with pytest.raises(ParameterError, match=r"do_mlm: .*'mpnet'"):
        load_lm_head("nowhere", build_transformer("mpnet"))
