"""Evaluators in our runs and in sentence-transformers' trainer."""

import json
import time

import pytest
import torch
from conftest import make_sentences, reset_accelerator
from datasets import Dataset
from model_cases import build_model, encoder_module
from safetensors.torch import load_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.evaluation import SentenceEvaluator
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling

import dystress_text as dt
from dystress_text.errors import UserError
from dystress_text.evaluation import classifier
from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.evaluation.evaluator_list import EvaluatorList, build_evaluators
from dystress_text.evaluation.evaluators import PairsEvaluator
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.evaluation.text_sets import read_scored_pairs
from dystress_text.programs.train import main
from dystress_text.training.run_record import RunRecord


@pytest.fixture
def own(tmp_path):
    """A file of 30 scored pairs."""
    texts = make_sentences(60, seed=5)
    rows = [f"{texts[2 * i]},{texts[2 * i + 1]},{7 * i % 11 - 3.5}\n" for i in range(30)]
    file = tmp_path / "My Pairs.csv"
    file.write_text("".join(["sentence1,sentence2,score\n", *rows]))
    return file


def their_evaluator(pairs):
    sides = list(pairs.first), list(pairs.second)
    return EmbeddingSimilarityEvaluator(*sides, pairs.scores.tolist(), name="theirs")


def run(flags, folder, *more):
    """Run the program; return the run's record."""
    reset_accelerator()
    flags = [flag for flag in flags if not flag.startswith("--output_dir")]
    assert main([*flags, f"--output_dir={folder}", *more]) == 0
    return json.loads((folder / "run.json").read_text())


def test_evaluation_does_not_change_a_run(flags, own, tmp_path, monkeypatch):
    """Weights are equal to the last bit."""
    monkeypatch.setattr(classifier, "MAX_EPOCHS", 2)
    flags = [*flags, "--pooler_type=avg"]  # first tokens' vectors are almost equal in this encoder
    alone = run(flags, tmp_path / "alone")
    more = ["--eval_transfer", "MiniParaphrase"]
    several = run(flags, tmp_path / "several", "--pairs", str(own), *more)
    one = load_file(tmp_path / "alone" / "model.safetensors")
    two = load_file(tmp_path / "several" / "model.safetensors")
    assert all(torch.equal(one[name], two[name]) for name in one)
    trained = several["trained"]
    assert trained.items() >= alone["trained"].items()
    names = {"miniparaphrase_dev_accuracy", "avg_spearman"}
    for name in ("sts_b_dev", "my_pairs"):
        names |= {f"{name}_spearman", f"{name}_alignment", f"{name}_uniformity"}
    assert set(trained) == names
    mean = (trained["sts_b_dev_spearman"] + trained["my_pairs_spearman"]) / 2
    assert trained["avg_spearman"] == pytest.approx(mean)
    metrics = several["metrics"]
    assert metrics["avg_spearman"]["sets"] == [["sts", "sts_b_dev"], ["pairs", "my_pairs"]]
    assert metrics["miniparaphrase_dev_accuracy"]["kind"] == "transfer"
    log = (tmp_path / "several" / "metrics.jsonl").read_text().splitlines()
    for line in map(json.loads, log):
        assert "loss" in line or set(line) == {"step", *names}


def test_a_model_of_another_pooling_is_measured_before_training(flags, data_dir, tmp_path):
    modules = [encoder_module(), Pooling(16, "max")]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.save(str(tmp_path / "base"), create_model_card=False)
    base = f"--model_name_or_path={tmp_path / 'base'}"
    record = RunRecord.from_json(run(flags, tmp_path / "out", base, "--max_steps=1"))
    pairs = eval_pairs("stsb_dev", data_dir)
    figure = record.compared[record.start]["sts_b_dev_spearman"]
    expected = their_evaluator(pairs)(model)["theirs_spearman_cosine"]
    assert figure == pytest.approx(100 * expected, abs=0.1)


@pytest.mark.parametrize(
    ("sets", "name", "metric"),
    [
        ("mini_sts stsb_dev", None, "mini_sts_spearman"),
        ("mini_sts stsb_dev", "eval_stsb_spearman", "sts_b_dev_spearman"),
        ("mini_sts stsb_dev", "eval_avg_sts", "avg_spearman"),
        ("none", None, None),
    ],
)
def test_names_of_metrics(data_dir, sets, name, metric):
    settings = EvaluationSettings(eval_set=sets)
    evaluators = build_evaluators(settings, data_dir)
    assert evaluators.best_metric(name) == metric
    with pytest.raises(UserError, match=r"^metric_for_best_model: "):
        evaluators.best_metric("eval_sickr_spearman")


class Careless(SentenceEvaluator):
    """Change the random state and the mode of the model, and return a number."""

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        torch.manual_seed(0)
        model.eval()
        return float(torch.rand(()))


def test_random_state_and_mode_are_restored():
    model = build_model("bert").train()
    torch.manual_seed(7)
    expected = torch.rand(())
    torch.manual_seed(7)
    model[1].eval()
    evaluators = EvaluatorList([], Careless())
    start = time.perf_counter()
    assert list(evaluators(model)) == ["evaluator"]
    assert 0 < evaluators.seconds <= time.perf_counter() - start
    assert torch.rand(()) == expected
    assert model.training
    assert not model[1].training


@pytest.mark.parametrize(
    ("similarity", "normalize", "truncate_dim"),
    [("cosine", True, 4), ("dot", False, None), ("euclidean", False, 4), ("manhattan", True, None)],
)
def test_figures_equal_sentence_transformers(own, similarity, normalize, truncate_dim):
    pairs = read_scored_pairs(str(own))
    theirs = their_evaluator(pairs)
    settings = {"similarity_fn_name": similarity, "truncate_dim": truncate_dim}
    model = build_model("bert", "avg", head=True, normalize=normalize, **settings)
    evaluators = EvaluatorList([PairsEvaluator(pairs)], theirs)
    metrics = evaluators(model)
    name = f"theirs_spearman_{similarity}"
    assert metrics["my_pairs_spearman"] == pytest.approx(100 * metrics[name], abs=1e-3)
    assert evaluators.best_metric(name) == name
    figures = dt.evaluate(model, pairs=own)["model"]
    assert figures["my_pairs"] == pytest.approx(100 * metrics[name], abs=0.006)
    vectors = torch.tensor(model.encode(pairs.sentences, normalize_embeddings=True))
    uniformity = float(torch.log(torch.exp(-2 * torch.pdist(vectors) ** 2).mean()))
    assert metrics["my_pairs_uniformity"] == pytest.approx(uniformity, abs=1e-4)


def test_sentence_transformers_trainer_uses_ours(own, tmp_path):
    pairs = read_scored_pairs(str(own))
    evaluator = PairsEvaluator(pairs)
    model = build_model("bert", "avg")
    texts = make_sentences(16, seed=3)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "log"),
        max_steps=2,
        learning_rate=1e-2,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{evaluator.primary_metric}",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_dict({"anchor": texts[:8], "positive": texts[8:]}),
        loss=MultipleNegativesRankingLoss(model),
        evaluator=evaluator,
    )
    trainer.train()
    name = "eval_my_pairs_spearman"
    figures = [line[name] for line in trainer.state.log_history if name in line]
    assert trainer.state.best_metric == max(figures)
    figures = dt.evaluate(model, pairs=own)["model"]
    assert trainer.evaluate()[name] == pytest.approx(figures["my_pairs"], abs=0.006)


@pytest.mark.parametrize("option", ["eval_set", "pairs"])
def test_wrong_evaluations_write_nothing(flags, own, option, tmp_path, capsys):
    values = {"eval_set": ["sts13"], "pairs": [str(own), str(own)]}[option]
    assert main([*flags, f"--{option}", *values]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--{option}" in line
    assert not (tmp_path / "out").exists()


def test_the_digest_is_of_content_and_name(own, tmp_path):
    """A run whose evaluation has another digest is not resumed."""

    def digest(file):
        settings = EvaluationSettings(eval_set=["mini_sts"], pairs=[str(file)])
        return build_evaluators(settings).digest()

    moved = tmp_path / "elsewhere" / own.name
    moved.parent.mkdir()
    moved.write_bytes(own.read_bytes())
    before = digest(own)
    assert digest(moved) == before
    moved.write_text(own.read_text().replace("-3.5", "-3.6"))
    renamed = own.rename(tmp_path / "other.csv")
    assert before not in (digest(moved), digest(renamed))
