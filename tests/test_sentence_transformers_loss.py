"""DySTreSSLoss beside sentence-transformers' own losses, explicit loops and its own objectives."""

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
    "InfoNCE, blockwise": lambda: losses.InfoNCELoss(
        losses.AlignmentAdaptiveTemperature(0.1, 0.5, 0.8), blockwise=True
    ),
    "NT-Xent": lambda: losses.NTXentLoss(
        losses.CosineTemperature(0.03, 0.05), detach_temperature=False
    ),
    "DCLW": lambda: losses.DCLWLoss(0.1, sigma=0.3),
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
    """The mean of a tiny BERT's tokens, in fp64 and in training mode."""
    model = SentenceTransformer(str(folder), device="cpu").double().train()
    set_dropout(model, dropout)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("pooler" not in name)  # which the mean does not use
    return model


def batch_of(model, columns, rows=ROWS):
    sentences = make_sentences(columns * rows)
    return [model.tokenize(sentences[i * rows : (i + 1) * rows]) for i in range(columns)]


def embed(model, batch):
    return [model(dict(features))["sentence_embedding"] for features in batch]


def gradient_of(model, value):
    """The value and its gradient in all weights, in one vector."""
    model.zero_grad()
    value.backward()
    return value.detach(), torch.cat(
        [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    )


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
    tolerances = (
        (1e-6, 1e-5) if dtype == torch.float32 else (1e-9, 1e-9)
    )  # the roundings of fp32, divided by tau
    assert_equal(run(model, DySTreSSLoss(model, tau, **size), batch), expected, *tolerances)
    flat = DySTreSSLoss(model, losses.CosineTemperature(tau, tau), **size)
    assert_equal(run(model, flat, batch), expected, *tolerances)


def test_what_their_losses_have_beside_forward(tiny_bert, capsys):
    model = build_model(tiny_bert)
    theirs, loss = MultipleNegativesRankingLoss(model, scale=5), DySTreSSLoss(model, 0.2)
    expected = run(model, theirs, batch_of(model, 3))
    assert_equal(
        gradient_of(model, loss.compute_loss_from_embeddings(embed(model, batch_of(model, 3)))),
        expected,
    )
    assert loss.temperature == getattr(theirs, "temperature", 0.2) == 0.2
    assert DySTreSSLoss(model, SHIFTED).temperature is SHIFTED
    assert DySTreSSLoss(model).objective == losses.InfoNCELoss(SHIFTED)
    if not CACHED:
        return
    loss = DySTreSSLoss(model, SHIFTED, **BY_TOKENS, show_progress_bar=True)
    passes = []
    with model[0].register_forward_hook(
        lambda module, inputs, out: passes.append(int(out["attention_mask"].sum()))
    ):
        run(model, loss, batch_of(model, 2))
    assert max(passes) <= 20
    assert "Embed mini-batches" in capsys.readouterr().err
    assert loss.get_config_dict().items() >= BY_TOKENS.items()


@pytest.mark.parametrize("mini_batch_size", [None, 3] if CACHED else [None])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_that_of_the_embeddings_and_matryoshka_the_sum_over_dimensions(
    tiny_bert, name, mini_batch_size
):
    model = build_model(tiny_bert)
    batch = batch_of(model, 3 if name.startswith("InfoNCE") else 2)
    loss = DySTreSSLoss(model, objective=OBJECTIVES[name](), mini_batch_size=mini_batch_size)
    expected = gradient_of(model, OBJECTIVES[name]()(*embed(model, batch)))
    assert_equal(run(model, loss, batch), expected)
    with torch.no_grad():
        assert loss(batch).item() == pytest.approx(expected[0].item(), rel=1e-9)
    found = run(model, MatryoshkaLoss(model, loss, DIMS, WEIGHTS), batch)
    embeddings = embed(model, batch)
    parts = [
        w * OBJECTIVES[name]()(*(z[:, :d] for z in embeddings))
        for d, w in zip(DIMS, WEIGHTS, strict=True)
    ]
    assert_equal(found, gradient_of(model, sum(parts)))


def rows_of(features, start, stop):
    """Some rows of a column without the padding that they all have, as the cache's mini-batches."""
    longest = int(features["attention_mask"][start:stop].sum(dim=1).max())
    return {
        name: value[start:stop, :longest]
        for name, value in features.items()
        if torch.is_tensor(value)
    }


@needs_cache
def test_the_cache_replays_dropout(tiny_bert):
    """Beside a plain pass over the same mini-batches with the same random numbers."""
    model = build_model(tiny_bert, dropout=0.3)
    batch = batch_of(model, 3)
    loss = DySTreSSLoss(model, losses.CosineTemperature(0.05, 0.1), mini_batch_size=3)
    value, gradient = run(
        model, lambda *inputs: 8 * loss(*inputs), batch
    )  # as accumulation and fp16 scale it
    torch.manual_seed(3)
    embeddings = [
        torch.cat(embed(model, [rows_of(column, i, i + 3) for i in range(0, ROWS, 3)]))
        for column in batch
    ]
    assert_equal(
        (value / 8, gradient / 8),
        gradient_of(model, losses.InfoNCELoss(losses.CosineTemperature(0.05, 0.1))(*embeddings)),
    )


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
    """Each case in two steps of 6 rows by the trainer; saves its losses and how far the weights
    went.
    """
    results = {}
    options = {
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
    }
    options |= {
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
            moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
            results[name, *size] = losses, moved
    torch.save(results, f"{folder}/{world_size}-{os.environ.get('RANK', 0)}")
    del loss, trainer
    gc.collect()  # DistributedDataParallel must be gone before its group


@pytest.mark.slow
def test_their_trainer_on_two_processes_equals_one(tiny_bert, tmp_path):
    spawn(2, train_all, str(tmp_path), str(tiny_bert), 2)
    train_all(str(tmp_path), str(tiny_bert), 1)
    one, *two = (torch.load(tmp_path / name) for name in ("1-0", "2-0", "2-1"))
    for case, (mean_losses, moved) in one.items():
        assert len(mean_losses) == 2
        for rank in two:
            torch.testing.assert_close(rank[case][0].mean(), mean_losses.mean(), rtol=1e-4, atol=0)
            assert float((rank[case][1] - moved).norm() / moved.norm()) < 1e-9, case


@pytest.mark.filterwarnings("ignore:a batch of 1 pair")  # 9 pairs in batches of 4
def test_a_run_and_its_card(tiny_bert, tmp_path):
    model = build_model(tiny_bert).float()
    before = model.encode("the cat")
    loss = DySTreSSLoss(
        model,
        objective=losses.DCLWLoss(losses.CosineTemperature(0.03, 0.05), 0.3),
        **(BY_ROWS if CACHED else {}),
    )
    make_trainer(model, loss, tmp_path / "run").train()
    model.save_pretrained(str(tmp_path / "model"))
    saved = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode("the cat")
    assert saved == pytest.approx(model.encode("the cat"), abs=1e-6)
    assert saved != pytest.approx(before, abs=1e-6)
    card = (tmp_path / "model" / "README.md").read_text()
    for line in ('"loss": "dclw(cosine(0.03, 0.05), sigma=0.3)"',
                 '"mini_batch_size": 3' if CACHED else "", "{Dynamically Scaled Temperature in Self-"):  # fmt: skip
        assert line in card, line


def test_a_schedule_follows_the_trainer(tiny_bert, tmp_path, monkeypatch):
    told, advance = [], DySTreSSLoss.advance
    monkeypatch.setattr(
        DySTreSSLoss, "advance", lambda self, *at: (told.append(at), advance(self, *at))
    )
    options = {
        "rows": 16,
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 2,
        "save_strategy": "epoch",
    }
    whole = [
        (0.0, 0.0),
        (0.5, 0.25),
        (1.0, 0.5),
        (1.5, 0.75),
    ]  # 2 steps an epoch, each of 2 batches of 4

    def train(**more):
        told.clear()
        model = build_model(tiny_bert).float()
        loss = DySTreSSLoss(
            model, losses.ScheduledTemperature(0.05, 0.2, half_period=1, unit="run")
        )
        make_trainer(model, loss, tmp_path, callbacks=[loss.callback()], **options).train(**more)
        return (
            told.copy(),
            loss.objective.temperature.time.item(),
            torch.cat([p.flatten() for p in model.parameters()]),
        )

    steps, time, weights = train()
    assert steps == whole
    assert time == 0.75
    steps, time, resumed = train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert steps == whole[2:]
    torch.testing.assert_close(resumed, weights)


def test_a_schedule_that_nobody_advances_is_refused_and_so_is_a_lone_column(tiny_bert, tmp_path):
    model = build_model(tiny_bert).float()
    loss = DySTreSSLoss(model, losses.ScheduledTemperature(0.1, 1.0))
    with pytest.raises(
        ValueError, match=r"ScheduledTemperature follows the run.*callbacks=\[loss.callback\(\)\]"
    ):
        make_trainer(model, loss, tmp_path).train()
    model.eval()
    assert loss(batch_of(model, 2)).isfinite()  # evaluation does not mind
    with pytest.raises(
        ValueError, match=r"InfoNCELoss .*\(anchor, positive\) and any number .*, got 1; labels"
    ):
        loss(batch_of(model, 1), torch.zeros(ROWS))


def test_a_lone_pair_counts_as_nothing(tiny_bert):
    model = build_model(tiny_bert)
    batch = batch_of(model, 2, rows=1)
    with pytest.warns(UserWarning, match=r"1 pair has no negatives.*dataloader_drop_last"):
        loss, gradient = run(model, DySTreSSLoss(model, **(BY_ROWS if CACHED else {})), batch)
    assert loss == 0
    assert not gradient.any()
    assert run(model, MultipleNegativesRankingLoss(model), batch)[0] == 0
    assert (
        run(model, DySTreSSLoss(model), batch_of(model, 3, rows=1))[0] > 0
    )  # the hard negative is one


@pytest.mark.parametrize(
    ("options", "words"),
    [({"temperature": 0.05, "objective": losses.NTXentLoss(0.1)}, "either temperature or objective"),
     ({"objective": losses.QueueInfoNCELoss(0.1, 8, 16)}, "momentum encoder"),
     ({"objective": losses.InfoNCELoss(0.1, gather=losses.ProcessGather(0, 2))}, "gather_across_devices=True"),
     ({"mini_batch_size": 2.5}, "mini_batch_size must be a whole number of at least 1, got 2.5"),
     ({"mini_batch_num_tokens": -1}, "mini_batch_num_tokens must be a whole number of at least 1, got -1")],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(tiny_bert, options, words):
    with pytest.raises(ValueError, match=words):
        DySTreSSLoss(build_model(tiny_bert), **options)


@needs_cache
def test_static_embeddings_do_without_the_cache(tokenizer):
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
