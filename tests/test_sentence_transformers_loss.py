"""DySTreSSLoss against sentence-transformers' losses and the objectives."""

import gc
import os

import pytest
import torch
from conftest import make_sentences, set_dropout
from datasets import Dataset
from processes import spawn
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import (
    CachedMultipleNegativesRankingLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.models import StaticEmbedding
from torch.nn.utils import parameters_to_vector

from dystress_text import DySTreSSLoss, losses

SHIFTED = losses.ShiftedCosineTemperature(0.05, 0.07, shift=-0.4)
OBJECTIVES = {
    "InfoNCE": lambda: losses.InfoNCELoss(SHIFTED, hard_negative_weight=2.0),
    "NT-Xent": lambda: losses.NTXentLoss(
        losses.CosineTemperature(0.03, 0.05), detach_temperature=False
    ),
    "MACL": lambda: losses.MACLLoss(losses.AlignmentAdaptiveTemperature(0.1, 0.5, 0.8)),
}
ROWS = 7
CACHED = hasattr(DySTreSSLoss, "forward_cached")
BY_ROWS = {"mini_batch_size": 3}
BY_TOKENS = {"mini_batch_num_tokens": 20}
IF_CACHED = BY_ROWS if CACHED else {}
DIMS = [16, 3]
WEIGHTS = [1.0, 0.25]


def build_model(folder, dropout=0.0):
    """Return a tiny BERT with mean pooling, in fp64 and in training mode."""
    model = SentenceTransformer(str(folder), device="cpu").double().train()
    set_dropout(model, dropout)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("pooler" not in name)  # which mean pooling does not use
    return model


@pytest.fixture
def model(tiny_bert):
    return build_model(tiny_bert)


def batch_of(model, columns, rows=ROWS):
    sentences = make_sentences(columns * rows)
    return [model.tokenize(sentences[i * rows : (i + 1) * rows]) for i in range(columns)]


def embed(model, batch):
    return [model(dict(features))["sentence_embedding"] for features in batch]


def weights_of(model):
    """Return a copy of all weights in one vector."""
    return parameters_to_vector(model.parameters()).detach().clone()


def backward(model, value):
    """Return the value and its gradient with respect to all weights, in one vector."""
    model.zero_grad()
    value.backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return value.detach(), torch.cat(gradients)


def run(model, loss, batch):
    torch.manual_seed(3)
    return backward(model, loss([dict(features) for features in batch], None))


def assert_equal(found, expected):
    torch.testing.assert_close(found[0], expected[0].to(found[0].dtype), rtol=1e-9, atol=0)
    size = expected[1].norm()
    assert size > 1e-3
    assert (found[1] - expected[1]).norm() < 1e-9 * size


@pytest.mark.parametrize("size", [{}, *([BY_ROWS, BY_TOKENS] if CACHED else [])], ids=str)
def test_constant_temperature_is_multiple_negatives_ranking(tiny_bert, size):
    model = build_model(tiny_bert, dropout=0.1)
    theirs = CachedMultipleNegativesRankingLoss if size else MultipleNegativesRankingLoss
    for columns in (2, 4):
        batch = batch_of(model, columns)
        expected = run(model, theirs(model, scale=20, **size), batch)
        assert_equal(run(model, DySTreSSLoss(model, 0.05, **size), batch), expected)


def test_default_temperature(model):
    assert DySTreSSLoss(model).objective == losses.InfoNCELoss(SHIFTED)
    assert DySTreSSLoss(model, 0.2).temperature == 0.2


@pytest.mark.parametrize(
    ("name", "columns", "options"),
    [("InfoNCE", 3, {}), ("NT-Xent", 2, IF_CACHED), ("MACL", 2, {})],
)
def test_objectives_and_matryoshka(model, name, columns, options):
    batch = batch_of(model, columns)
    objective = OBJECTIVES[name]()
    loss = DySTreSSLoss(model, objective=OBJECTIVES[name](), **options)
    expected = backward(model, objective(*embed(model, batch)))
    assert_equal(run(model, loss, batch), expected)
    found = run(model, MatryoshkaLoss(model, loss, DIMS, WEIGHTS), batch)
    embeddings = embed(model, batch)
    value = 0
    for dim, weight in zip(DIMS, WEIGHTS, strict=True):
        value = value + weight * objective(*(z[:, :dim] for z in embeddings))
    assert_equal(found, backward(model, value))


def make_trainer(model, loss, folder, rows=9, columns=2, callbacks=None, **options):
    sentences = make_sentences(columns * rows)
    data = Dataset.from_dict({f"{i}": sentences[i * rows : (i + 1) * rows] for i in range(columns)})
    settings = {
        "report_to": "none",
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "save_strategy": "no",
    }
    arguments = SentenceTransformerTrainingArguments(str(folder), **settings | options)
    return SentenceTransformerTrainer(
        model, arguments, train_dataset=data, loss=loss, callbacks=callbacks
    )


def train_all(folder, bert, world_size):
    """Train two steps of 6 rows; save the losses and the change of the weights."""
    results = {}
    options = {
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
        "logging_steps": 1,
        "per_device_train_batch_size": 6 // world_size,
        "disable_tqdm": True,
    }
    for name, columns, size in (
        ("InfoNCE", 3, {}),
        ("NT-Xent", 2, BY_TOKENS),
        ("InfoNCE", 3, BY_TOKENS),
    ):
        model = build_model(bert)
        before = weights_of(model)
        objective = OBJECTIVES[name]()
        loss = DySTreSSLoss(model, objective=objective, gather_across_devices=True, **size)
        trainer = make_trainer(model, loss, folder, 12, columns, **options)
        trainer.train()
        logged = [step["loss"] for step in trainer.state.log_history if "loss" in step]
        results[name, *size] = torch.tensor(logged), weights_of(model) - before
    torch.save(results, f"{folder}/{world_size}-{os.environ.get('RANK', 0)}")
    del loss, trainer
    gc.collect()  # frees DistributedDataParallel before its group


@pytest.mark.slow
def test_their_trainer_on_two_processes_equals_one(tiny_bert, tmp_path):
    spawn(2, train_all, str(tmp_path), str(tiny_bert), 2)
    train_all(str(tmp_path), str(tiny_bert), 1)
    one, *two = (torch.load(tmp_path / name) for name in ("1-0", "2-0", "2-1"))
    for case, (mean_losses, change) in one.items():
        assert len(mean_losses) == 2
        for rank in two:
            torch.testing.assert_close(rank[case][0].mean(), mean_losses.mean(), rtol=1e-4, atol=0)
            assert (rank[case][1] - change).norm() < 1e-9 * change.norm(), case


@pytest.mark.filterwarnings("ignore:a batch of 1 pair")  # 9 pairs in batches of 4
def test_a_run_and_its_card(model, tmp_path):
    model.float()
    objective = losses.DCLWLoss(losses.CosineTemperature(0.03, 0.05), 0.3)
    loss = DySTreSSLoss(model, objective=objective, **IF_CACHED)
    make_trainer(model, loss, tmp_path / "run").train()
    model.save_pretrained(str(tmp_path / "model"))
    saved = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode("the cat")
    assert saved == pytest.approx(model.encode("the cat"), abs=1e-6)
    card = (tmp_path / "model" / "README.md").read_text()
    assert '"loss": "dclw(cosine(0.03, 0.05), sigma=0.3)"' in card
    assert "{Dynamically Scaled Temperature in Self-" in card


def test_a_schedule_follows_the_trainer(tiny_bert, tmp_path, monkeypatch):
    steps = []
    advance = losses.ScheduledTemperature.advance

    def record(self, *progress):
        steps.append(progress)
        advance(self, *progress)

    monkeypatch.setattr(losses.ScheduledTemperature, "advance", record)
    options = {
        "rows": 16,
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 2,
        "save_strategy": "epoch",
    }

    def train(**more):
        model = build_model(tiny_bert).float()
        schedule = losses.ScheduledTemperature(0.05, 0.2, half_period=1, unit="run")
        loss = DySTreSSLoss(model, schedule)
        make_trainer(model, loss, tmp_path, callbacks=[loss.callback()], **options).train(**more)
        return weights_of(model)

    weights = train()
    whole = [(0.0, 0.0), (0.5, 0.25), (1.0, 0.5), (1.5, 0.75)]  # 2 steps of 2 batches an epoch
    assert steps == whole
    resumed = train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert steps == whole + whole[2:]
    torch.testing.assert_close(resumed, weights)


def test_missing_progress_and_column_are_refused(model):
    loss = DySTreSSLoss(model, losses.ScheduledTemperature(0.1, 1.0))
    with pytest.raises(ValueError, match="callback"):
        loss(batch_of(model, 2))
    model.eval()
    assert loss(batch_of(model, 2)).isfinite()  # evaluation needs no progress
    with pytest.raises(ValueError, match="anchor, positive"):
        loss(batch_of(model, 1), torch.zeros(ROWS))


def test_a_single_pair_has_the_loss_0(model):
    batch = batch_of(model, 2, rows=1)
    with pytest.warns(UserWarning, match="dataloader_drop_last"):
        loss, gradient = run(model, DySTreSSLoss(model, **IF_CACHED), batch)
    assert loss == 0
    assert not gradient.any()
    assert run(model, MultipleNegativesRankingLoss(model), batch)[0] == 0


def test_invalid_arguments_are_refused(model):
    with pytest.raises(ValueError, match="temperature or objective"):
        DySTreSSLoss(model, 0.05, objective=losses.NTXentLoss(0.1))
    with pytest.raises(ValueError, match="objective"):
        DySTreSSLoss(model, objective=losses.QueueInfoNCELoss(0.1, 8, 16))


@pytest.mark.skipif(not CACHED, reason="sentence-transformers shares its cache from 5.7 on")
def test_static_embeddings_cannot_be_cached(tokenizer):
    table = StaticEmbedding(tokenizer.backend_tokenizer, embedding_dim=8)
    model = SentenceTransformer(modules=[table], device="cpu")
    with pytest.raises(ValueError, match="StaticEmbedding"):
        DySTreSSLoss(model, mini_batch_size=4)
