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

from dystress_text import DySTreSSLoss, losses

SHIFTED = losses.ShiftedCosineTemperature(0.05, 0.07, shift=-0.4)
OBJECTIVES = {
    "InfoNCE": lambda: losses.InfoNCELoss(SHIFTED, hard_negative_weight=2.0),
    "NT-Xent": lambda: losses.NTXentLoss(
        losses.CosineTemperature(0.03, 0.05), detach_temperature=False
    ),
    "MACL": lambda: losses.MACLLoss(0.1, 0.5, 0.8),
}
ROWS = 7
CACHED = hasattr(DySTreSSLoss, "forward_cached")
needs_cache = pytest.mark.skipif(
    not CACHED, reason="sentence-transformers shares its cache from 5.7 on"
)
BY_ROWS, BY_TOKENS = {"mini_batch_size": 3}, {"mini_batch_num_tokens": 20}
DIMS, WEIGHTS = [16, 8, 3], [1.0, 0.5, 0.25]


def build_model(folder, dropout=0.0):
    """Return a tiny BERT with mean pooling, in fp64 and in training mode."""
    model = SentenceTransformer(str(folder), device="cpu").double().train()
    set_dropout(model, dropout)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("pooler" not in name)  # which mean pooling does not use
    return model


def batch_of(model, columns, rows=ROWS):
    sentences = make_sentences(columns * rows)
    return [model.tokenize(sentences[i * rows : (i + 1) * rows]) for i in range(columns)]


def embed(model, batch):
    return [model(dict(features))["sentence_embedding"] for features in batch]


def gradient_of(model, value):
    """Return the value and its gradient by all weights, in one vector."""
    model.zero_grad()
    value.backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return value.detach(), torch.cat(gradients)


def run(model, loss, batch, seed=3):
    torch.manual_seed(seed)
    return gradient_of(model, loss([dict(features) for features in batch], None))


def assert_equal(found, expected, of_loss=1e-9, of_gradient=1e-9):
    torch.testing.assert_close(found[0], expected[0].to(found[0].dtype), rtol=of_loss, atol=0)
    assert float(expected[1].norm()) > 1e-3
    assert float((found[1] - expected[1]).norm() / expected[1].norm()) < of_gradient


@pytest.mark.parametrize(
    ("tau", "columns", "dtype"),
    [(0.05, 2, torch.float64), (0.2, 3, torch.float64), (0.05, 5, torch.float32)],
)
@pytest.mark.parametrize("size", [{}, *([BY_ROWS, BY_TOKENS] if CACHED else [])], ids=str)
def test_constant_temperature_is_multiple_negatives_ranking(tiny_bert, columns, size, dtype, tau):
    model = build_model(tiny_bert, dropout=0.1).to(dtype)
    batch = batch_of(model, columns)
    theirs = CachedMultipleNegativesRankingLoss if size else MultipleNegativesRankingLoss
    expected = run(model, theirs(model, scale=1 / tau, **size), batch)
    found = run(model, DySTreSSLoss(model, tau, **size), batch)
    of_loss, of_gradient = (1e-6, 1e-5) if dtype == torch.float32 else (1e-9, 1e-9)
    assert_equal(found, expected, of_loss, of_gradient)


def test_loss_of_embeddings_and_default_temperature(tiny_bert):
    model = build_model(tiny_bert)
    loss = DySTreSSLoss(model, 0.2)
    found = loss.compute_loss_from_embeddings(embed(model, batch_of(model, 3)))
    theirs = MultipleNegativesRankingLoss(model, scale=5)
    assert_equal(gradient_of(model, found), run(model, theirs, batch_of(model, 3)))
    assert loss.temperature == 0.2
    assert DySTreSSLoss(model).objective == losses.InfoNCELoss(SHIFTED)


@needs_cache
def test_mini_batches_by_tokens(tiny_bert):
    model = build_model(tiny_bert)
    passes = []

    def count_tokens(module, inputs, output):
        passes.append(int(output["attention_mask"].sum()))

    with model[0].register_forward_hook(count_tokens):
        run(model, DySTreSSLoss(model, SHIFTED, **BY_TOKENS), batch_of(model, 2))
    assert max(passes) <= 20


@pytest.mark.parametrize("mini_batch_size", [None, 3] if CACHED else [None])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_and_matryoshka(tiny_bert, name, mini_batch_size):
    model = build_model(tiny_bert)
    batch = batch_of(model, 3 if name.startswith("InfoNCE") else 2)
    loss = DySTreSSLoss(model, objective=OBJECTIVES[name](), mini_batch_size=mini_batch_size)
    expected = gradient_of(model, OBJECTIVES[name]()(*embed(model, batch)))
    assert_equal(run(model, loss, batch), expected)
    found = run(model, MatryoshkaLoss(model, loss, DIMS, WEIGHTS), batch)
    embeddings = embed(model, batch)
    parts = [
        w * OBJECTIVES[name]()(*(z[:, :d] for z in embeddings))
        for d, w in zip(DIMS, WEIGHTS, strict=True)
    ]
    assert_equal(found, gradient_of(model, sum(parts)))


def rows_of(features, start, stop):
    """Return some rows of a column without common padding, as the cache does."""
    longest = int(features["attention_mask"][start:stop].sum(dim=1).max())
    return {
        name: value[start:stop, :longest]
        for name, value in features.items()
        if torch.is_tensor(value)
    }


@needs_cache
def test_the_cache_replays_dropout(tiny_bert):
    """Compare with a plain pass over the same mini-batches and random numbers."""
    model = build_model(tiny_bert, dropout=0.3)
    batch = batch_of(model, 3)
    loss = DySTreSSLoss(model, SHIFTED, mini_batch_size=3)
    value, gradient = run(model, lambda *inputs: 8 * loss(*inputs), batch)  # scaled, as in fp16
    torch.manual_seed(3)
    embeddings = [
        torch.cat(embed(model, [rows_of(column, i, i + 3) for i in range(0, ROWS, 3)]))
        for column in batch
    ]
    expected = gradient_of(model, losses.InfoNCELoss(SHIFTED)(*embeddings))
    assert_equal((value / 8, gradient / 8), expected)


SHARED_CASES = {
    "triplets": (3, lambda model, **o: DySTreSSLoss(model, **o)),
    "NT-Xent": (2, lambda model, **o: DySTreSSLoss(model, objective=OBJECTIVES["NT-Xent"](), **o)),
    "Matryoshka": (
        3,
        lambda model, **o: MatryoshkaLoss(model, DySTreSSLoss(model, **o), DIMS, WEIGHTS),
    ),
}


def make_trainer(model, loss, folder, rows=9, columns=2, callbacks=None, **options):
    sentences = make_sentences(columns * rows)
    data = Dataset.from_dict({f"{i}": sentences[i * rows : (i + 1) * rows] for i in range(columns)})
    settings = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "save_strategy": "no",
        **options,
    }
    arguments = SentenceTransformerTrainingArguments(
        str(folder), report_to="none", use_cpu=True, **settings
    )
    return SentenceTransformerTrainer(
        model, arguments, train_dataset=data, loss=loss, callbacks=callbacks
    )


def train_all(folder, bert, world_size):
    """Train each case for two steps of 6 rows; save its losses and the change of its weights."""
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
    for name, (columns, build) in SHARED_CASES.items():
        for size in ({}, BY_TOKENS):
            model = build_model(bert)
            before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
            loss = build(model, gather_across_devices=True, **size)
            trainer = make_trainer(model, loss, folder, 12, columns, **options)
            trainer.train()
            losses = torch.tensor(
                [step["loss"] for step in trainer.state.log_history if "loss" in step]
            )
            after = torch.cat([p.detach().flatten() for p in model.parameters()])
            results[name, *size] = losses, after - before
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
            assert float((rank[case][1] - change).norm() / change.norm()) < 1e-9, case


@pytest.mark.filterwarnings("ignore:a batch of 1 pair")  # 9 pairs in batches of 4
def test_a_run_and_its_card(tiny_bert, tmp_path):
    model = build_model(tiny_bert).float()
    loss = DySTreSSLoss(
        model,
        objective=losses.DCLWLoss(losses.CosineTemperature(0.03, 0.05), 0.3),
        **(BY_ROWS if CACHED else {}),
    )
    make_trainer(model, loss, tmp_path / "run").train()
    model.save_pretrained(str(tmp_path / "model"))
    saved = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode("the cat")
    assert saved == pytest.approx(model.encode("the cat"), abs=1e-6)
    card = (tmp_path / "model" / "README.md").read_text()
    assert '"loss": "dclw(cosine(0.03, 0.05), sigma=0.3)"' in card
    assert "{Dynamically Scaled Temperature in Self-" in card


def test_a_schedule_follows_the_trainer(tiny_bert, tmp_path, monkeypatch):
    steps = []
    advance = DySTreSSLoss.advance

    def record(self, *progress):
        steps.append(progress)
        advance(self, *progress)

    monkeypatch.setattr(DySTreSSLoss, "advance", record)
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
        return torch.cat([p.flatten() for p in model.parameters()])

    weights = train()
    whole = [(0.0, 0.0), (0.5, 0.25), (1.0, 0.5), (1.5, 0.75)]  # 2 steps of 2 batches an epoch
    assert steps == whole
    resumed = train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert steps == whole + whole[2:]
    torch.testing.assert_close(resumed, weights)


def test_a_schedule_without_progress_and_a_single_column_are_refused(tiny_bert):
    model = build_model(tiny_bert)
    loss = DySTreSSLoss(model, losses.ScheduledTemperature(0.1, 1.0))
    with pytest.raises(ValueError, match="callback"):
        loss(batch_of(model, 2))
    model.eval()
    assert loss(batch_of(model, 2)).isfinite()  # evaluation needs no progress
    with pytest.raises(ValueError, match="anchor, positive"):
        loss(batch_of(model, 1), torch.zeros(ROWS))


def test_a_single_pair_has_the_loss_0(tiny_bert):
    model = build_model(tiny_bert)
    batch = batch_of(model, 2, rows=1)
    with pytest.warns(UserWarning, match="dataloader_drop_last"):
        loss, gradient = run(model, DySTreSSLoss(model, **(BY_ROWS if CACHED else {})), batch)
    assert loss == 0
    assert not gradient.any()
    assert run(model, MultipleNegativesRankingLoss(model), batch)[0] == 0


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"temperature": 0.05, "objective": losses.NTXentLoss(0.1)}, "temperature or objective"),
        ({"objective": losses.QueueInfoNCELoss(0.1, 8, 16)}, "objective"),
        ({"objective": losses.InfoNCELoss(0.1, gather=losses.ProcessGather(0, 2))}, "gather"),
        ({"mini_batch_size": 2.5}, "mini_batch_size"),
        ({"mini_batch_num_tokens": -1}, "mini_batch_num_tokens"),
    ],
)
def test_invalid_arguments_are_refused(tiny_bert, options, parameter):
    with pytest.raises(ValueError, match=parameter):
        DySTreSSLoss(build_model(tiny_bert), **options)


@needs_cache
def test_static_embeddings_cannot_be_cached(tokenizer):
    model = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer.backend_tokenizer, embedding_dim=8)], device="cpu"
    ).double()
    batch = batch_of(model, 2)
    assert_equal(
        run(model, DySTreSSLoss(model, 0.05), batch),
        run(model, MultipleNegativesRankingLoss(model), batch),
    )
    with pytest.raises(ValueError, match="StaticEmbedding"):
        DySTreSSLoss(model, mini_batch_size=4)
