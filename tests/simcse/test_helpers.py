"""Guide, teacher, dimensions and the way back, in a task and in runs of the program."""

import json

import pytest
import torch
from conftest import build_tokenizer, make_sentences, reset_accelerator
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding, Transformer
from torch.nn.functional import cosine_similarity
from trainer_cases import make_task, run, weights

from dystress_text.core.distillation import Distillation
from dystress_text.core.guide import GuideRule
from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.frozen import frozen_copy, load_frozen
from dystress_text.errors import UserError
from dystress_text.simcse.corpus import corpus_in_memory
from dystress_text.simcse.helpers import Frozen, Helpers
from dystress_text.train import main

PROMPTS = {"prompts": {"query": "a cat: ", "other": "x "}, "default_prompt_name": "query"}


def teacher_folder(folder, tiny_bert, more=(), include_prompt=True, **settings):
    modules = [Transformer(str(tiny_bert)), Pooling(16, "mean", include_prompt=include_prompt), *more]
    SentenceTransformer(modules=modules, device="cpu", **settings).save(str(folder))
    return str(folder)


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("dimension", [16, 8], ids=["ours", "its own code"])
def test_a_frozen_model_gives_the_vectors_that_it_gives(tiny_bert, tmp_path, dimension, include_prompt):
    """With its prompt, and of another dimension."""
    more = () if dimension == 16 else (Dense(16, 8, activation_function=None),)
    name = teacher_folder(tmp_path / "m", tiny_bert, more, include_prompt, **PROMPTS)
    frozen, sentences = load_frozen(name, "--teacher"), make_sentences(7)
    assert isinstance(frozen.network, SentenceEncoder) == (dimension == 16)
    corpus = corpus_in_memory([frozen.prompt + sentence for sentence in sentences], frozen.tokenizer, 40)
    batch = corpus.batch(torch.arange(7).numpy())
    expected = torch.as_tensor(SentenceTransformer(name, device="cpu").encode(sentences))
    assert expected.shape == (7, dimension)
    torch.testing.assert_close(frozen(batch["token_ids"], batch["attention_mask"]), expected, rtol=0, atol=1e-5)


def with_helpers(corpus, teacher, dims=(12, 16)):
    task = make_task(corpus, pooler="avg")
    base = Frozen(frozen_copy(task.model, task.tokenizer, with_head=False), corpus)
    taught = Frozen(load_frozen(teacher, "--teacher"), corpus)
    task.helpers = Helpers(base, GuideRule(quantile=0.8), taught, Distillation("listmle", 0.5), dims)
    task.objective.guided = torch.zeros(1, dtype=torch.int64)
    return task


def test_chunks_and_the_whole_batch_give_one_gradient(corpus, tiny_bert, tmp_path):
    teacher = teacher_folder(tmp_path / "m", tiny_bert, (Dense(16, 8, activation_function=None),))
    found, counts = [], []
    for chunk in (None, 3):
        task = with_helpers(corpus, teacher)
        run(task, corpus, tmp_path / f"out-{chunk}", max_steps=2, grad_cache_chunk=chunk)[1].close()
        reset_accelerator()
        found.append(weights(task))
        counts.append(int(task.objective.guided))
    torch.testing.assert_close(*found, rtol=0, atol=3e-4)  # a step of Adam is 1e-2; rounding moves small gradients
    assert counts[0] == counts[1] > 0


def test_the_loss_of_a_batch_is_its_parts(corpus, tiny_bert, tmp_path):
    """The guide is the start itself, so its similarities are those of its vectors without dropout."""
    teacher = teacher_folder(tmp_path / "m", tiny_bert)
    task = with_helpers(corpus, teacher, dims=())
    batch = task.load(torch.arange(6).numpy(), 0)
    embeddings = task.embed(task.model.train(), batch)
    z = [view.detach() for view in embeddings.views]
    base = task.helpers.guide.encoder(batch["token_ids"], batch["attention_mask"])
    cosines = cosine_similarity(base[:, None], base[None], dim=-1)
    others = ~torch.eye(6, dtype=torch.bool)
    alike = (cosines > torch.quantile(cosines[others], 0.8)) & others
    s = cosine_similarity(z[0][:, None], z[1][None], dim=-1)
    logits = s / task.objective.temperature(s)
    contrastive = torch.nn.functional.cross_entropy(logits.masked_fill(alike, -torch.inf), torch.arange(6))
    lists = task.helpers.distillation(z, [batch["teacher_vectors"]] * 2, task.objective.gather)
    torch.testing.assert_close(task.loss(embeddings), contrastive + lists, rtol=1e-5, atol=1e-6)
    assert int(task.objective.guided) == int(alike.sum()) > 0


def test_the_program_saves_what_it_was_asked_for(flags, tiny_bert, tmp_path):
    """Alpha 0 saves the start bit for bit; the record's figures are those of the saved model."""
    teacher = teacher_folder(tmp_path / "m", tiny_bert)
    helped = [
        "--pooler_type=avg",
        "--guide=base",
        "--guide_quantile=0.9",
        f"--teacher={teacher}",
        "--teacher_loss=listmle",
    ]
    found = {}
    for alpha in (None, "1", "0.5", "0"):
        given = [] if alpha is None else [f"--interpolate={alpha}"]
        assert main([*flags, *helped, *given, "--matryoshka_dims", "16", "8", "--overwrite_output_dir"]) == 0
        reset_accelerator()
        record = json.loads((tmp_path / "out" / "run.json").read_text())
        found[alpha] = (load_file(tmp_path / "out" / "model.safetensors"), record)
    settings = found[None][1]["settings"]
    assert settings["teacher_weight"] == 1.0
    assert settings["student_temperature"] == 2 * settings["teacher_temperature"] == 0.05
    assert settings["matryoshka_dims"] == [16, 8]
    assert found[None][1]["guided_pairs"] > 0
    base, tuned = load_file(tiny_bert / "model.safetensors"), found[None][0]
    for name, tensor in tuned.items():
        assert torch.equal(found["0"][0][name], base[name]), name
        assert torch.equal(found["1"][0][name], tensor), name
        torch.testing.assert_close(found["0.5"][0][name], (base[name] + tensor) / 2, rtol=0, atol=1e-6)
    untrained = found["0"][1]["untrained"]["avg"]
    assert found["0"][1]["trained"] == pytest.approx(untrained, abs=1e-3)
    assert found[None][1]["trained"] != pytest.approx(untrained, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--guide=base"], "--guide: one of --guide_threshold, --guide_quantile and --guide_margin"),
        (
            ["--guide=base", "--guide_quantile=0.9", "--guide_threshold=0.9"],
            "got --guide_threshold and --guide_quantile",
        ),
        (["--guide=base", "--guide_quantile=1"], "--guide_quantile: must lie in (0, 1), got 1.0"),
        (["--guide_quantile=0.9"], "--guide_quantile: has no effect without --guide"),
        (["--guide=base", "--guide_margin=0.1"], "--guide_margin: needs --supervised"),
        (
            ["--guide=base", "--guide_quantile=0.9", "--guide_margin_strategy=relative"],
            "--guide_margin_strategy: has no",
        ),
        (["--guide=nowhere/none", "--guide_quantile=0.9"], "--guide: "),
        (["--teacher_loss=listmle"], "--teacher_loss: has no effect without --teacher"),
        (["--teacher=base", "--teacher_weight=0"], "--teacher_weight: must be positive"),
        (["--interpolate=1.5"], "--interpolate: must lie in [0, 1], got 1.5"),
        (["--interpolate=0.5", "--lora_rank=2"], "--interpolate: does not go with --lora_rank"),
        (["--matryoshka_dims", "32", "8"], "--matryoshka_dims: the vectors have 16 dimensions, got 32"),
        (["--matryoshka_dims", "0"], "--matryoshka_dims: positive numbers"),
        (["--matryoshka_dims", "8", "--temperature=isogclr"], "--matryoshka_dims: this temperature has a state"),
        (["--early_stopping_patience=1", "--eval_set=none"], "--early_stopping_patience: nothing is evaluated"),
    ],
)
def test_options_that_do_not_fit_are_one_line(flags, tmp_path, capsys, options, message):
    assert main([*flags, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


def test_what_encodes_no_text_is_no_teacher(tiny_bert, tmp_path):
    with pytest.raises(UserError, match=r"^--teacher: .* is not a sentence-transformers model$"):
        load_frozen(str(tiny_bert), "--teacher")
    static = SentenceTransformer(modules=[StaticEmbedding(build_tokenizer().backend_tokenizer, embedding_dim=4)])
    static.save(str(tmp_path / "static"))
    with pytest.raises(UserError, match=r"^--teacher: .* has no text encoder"):
        load_frozen(str(tmp_path / "static"), "--teacher")
    name = teacher_folder(tmp_path / "m", tiny_bert)
    (tmp_path / "m" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"^--guide: cannot load"):
        load_frozen(name, "--guide")
