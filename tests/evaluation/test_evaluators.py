"""What a run is evaluated on: evaluators of this package, of sentence-transformers and others, in
our runs and in sentence-transformers' trainer.
"""

import json

import pytest
import torch
from conftest import make_sentences, reset_accelerator
from datasets import Dataset
from model_cases import build_model
from safetensors.torch import load_file
from scipy import stats
from sentence_transformers import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.evaluation import SentenceEvaluator
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from trainer_cases import interrupt

import dystress_text as dt
from dystress_text.errors import UserError
from dystress_text.evaluation.evaluators import (
    Evaluator,
    EvaluatorList,
    PairsEvaluator,
    build_evaluators,
)
from dystress_text.evaluation.readers import read_scored_pairs
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.programs.train import main


@pytest.fixture
def own(tmp_path):
    """A file of 30 scored pairs."""
    sentences = iter(make_sentences(60, seed=5))
    rows = [
        f"{a},{b},{7 * i % 11 - 3.5}\n"
        for i, (a, b) in enumerate(zip(sentences, sentences, strict=True))
    ]
    file = tmp_path / "My Pairs.csv"
    file.write_text("".join(["sentence1,sentence2,score\n", *rows]))
    return file


def run(flags, folder, *more):
    """Run the program to a folder; its record and the lines of its log."""
    reset_accelerator()
    assert (
        main(
            [
                *(f for f in flags if not f.startswith("--output_dir")),
                f"--output_dir={folder}",
                *more,
            ]
        )
        == 0
    )
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return json.loads((folder / "run.json").read_text()), log


@pytest.mark.usefixtures("with_pictures")
def test_a_run_takes_no_notice_of_further_evaluators(flags, own, tmp_path, capsys):
    """Dropout, order and the first set's figures: all to the last bit."""
    flags = [*flags, "--pooler_type=avg"]  # the first token's vectors all but agree in this encoder
    alone, _ = run(flags, tmp_path / "alone")
    more = ["--eval_set=stsb_dev mini_sts", "--eval_transfer", "MiniQuestions", "MiniParaphrase"]
    beside, log = run(flags, tmp_path / "hybrid", "--eval_file", str(own), *more)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("alone", "hybrid"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert beside["best_step"] == alone["best_step"]
    assert beside["trained"].items() >= alone["trained"].items()
    assert list(beside["untrained"]) == list(alone["untrained"])
    sets = ("sts_b_dev", "mini_sts", "my_pairs")
    names = [f"{s}_{kind}" for s in sets for kind in ("spearman", "alignment", "uniformity")]
    names += [
        "miniquestions_dev_accuracy",
        "miniparaphrase_dev_accuracy",
        "avg_transfer_dev",
        "avg_spearman",
    ]
    assert list(beside["trained"]) == names
    assert all(set(line) == {"step", *names} for line in log if "loss" not in line)
    mean = sum(beside["trained"][f"{s}_spearman"] for s in sets) / 3
    assert beside["trained"]["avg_spearman"] == pytest.approx(mean)
    assert f"avg_spearman{'':29} {mean:8.2f}" in capsys.readouterr().out
    page = (tmp_path / "hybrid" / "report.html").read_text()
    assert all(
        f">{title}: Spearman x 100" in page for title in ("STS-B dev", "mini-STS", "my pairs")
    )


BOTH = ["mini_sts", "stsb_dev"]
NAMES = [
    (BOTH, None, "mini_sts_spearman"), (BOTH, "mini_sts_spearman", "mini_sts_spearman"),
    (BOTH, "eval_stsb_spearman", "sts_b_dev_spearman"), (["mini_sts"], "stsb_spearman", "mini_sts_spearman"),
    (BOTH, "avg", "avg_spearman"), (BOTH, "eval_avg_sts", "avg_spearman"), (["stsb_dev"], "avg", "sts_b_dev_spearman"),
    (["none"], None, None),
]  # fmt: skip


@pytest.mark.parametrize(("sets", "name", "metric"), NAMES)
def test_names_of_metrics(data_dir, sets, name, metric):
    assert build_evaluators(EvaluationSettings(eval_set=sets), data_dir).best_metric(name) == metric


def test_unknown_metrics_and_names_of_other_evaluators(data_dir):
    best = EvaluatorList(
        [Evaluator(["avg_transfer_dev", "mr_dev_accuracy", "eval_own"])]
    ).best_metric
    assert best("eval_avg_transfer") == best("avg_transfer") == "avg_transfer_dev"
    assert best("eval_MR") == best("MR") == "mr_dev_accuracy"
    assert best("eval_own") == "eval_own"
    evaluation = build_evaluators(EvaluationSettings(eval_set=BOTH), data_dir)
    with pytest.raises(UserError, match=r"^metric_for_best_model: .*sts_b_dev_spearman"):
        evaluation.best_metric("eval_sickr_spearman")
    with pytest.raises(UserError, match=r"^metric_for_best_model: "):
        EvaluatorList([]).best_metric("avg")


def test_an_evaluator_that_draws_numbers_does_not_move_the_run_and_gives_figures_that_exist():
    class Careless(SentenceEvaluator):
        primary_metric = "x"

        def __call__(self, model, output_path=None, epoch=-1, steps=-1):
            torch.manual_seed(0)
            model.eval()
            return {"x": float(torch.rand(())), "y": float("nan")}

    torch.manual_seed(7)
    expected = torch.rand(())
    torch.manual_seed(7)
    model = build_model("bert").train()
    state = torch.get_rng_state()
    torch.manual_seed(7)
    assert EvaluatorList([Careless()])(model).keys() == {"x"}
    assert torch.rand(()) == expected
    assert model.training
    torch.set_rng_state(state)


THEIRS = EmbeddingSimilarityEvaluator(
    ["a cat sat", "a dog ran", "a big fish swam", "the old man ate"],
    ["the cat sat", "a red house", "a small fish swam", "a bird flew"],
    [0.9, 0.1, 0.8, 0.3],
    name="theirs",
)


def test_ours_and_sentence_transformers_own_measure_one_model(own):
    """Our figure is theirs x 100, and each keeps the names of its metrics."""
    pairs = read_scored_pairs(str(own))
    like_ours = EmbeddingSimilarityEvaluator(
        list(pairs.first), list(pairs.second), pairs.scores.tolist(), name="like_ours"
    )
    model = build_model("bert", "avg", head=True)
    evaluation = EvaluatorList([PairsEvaluator(pairs), THEIRS, like_ours])
    metrics = evaluation(model)
    spearman = metrics["my_pairs_spearman"]
    assert spearman == pytest.approx(100 * metrics["like_ours_spearman_cosine"], abs=1e-6)
    assert metrics["theirs_spearman_cosine"] == pytest.approx(
        THEIRS(model)["theirs_spearman_cosine"]
    )
    assert evaluation.best_metric(None) == "my_pairs_spearman"
    assert evaluation.best_metric("theirs_spearman_cosine") == "theirs_spearman_cosine"
    assert (
        EvaluatorList([THEIRS, PairsEvaluator(pairs)]).best_metric(None) == "theirs_spearman_cosine"
    )


def test_ours_runs_in_sentence_transformers_trainer(own, tmp_path):
    pairs = read_scored_pairs(str(own))
    evaluator = PairsEvaluator(pairs)
    model = build_model("bert", "avg")
    texts = make_sentences(16, seed=3)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "log"), max_steps=2, per_device_train_batch_size=4, learning_rate=1e-2,
        eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, load_best_model_at_end=True,
        metric_for_best_model=f"eval_{evaluator.primary_metric}", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_dict({"anchor": texts[:8], "positive": texts[8:]}),
        loss=MultipleNegativesRankingLoss(model),
        evaluator=evaluator,
    )
    trainer.train()
    figures = [line["eval_my_pairs_spearman"] for line in trainer.state.log_history
               if "eval_my_pairs_spearman" in line]  # fmt: skip
    assert len(figures) == 2
    assert trainer.state.best_metric == max(figures)
    first, second = (model.encode(list(side)) for side in (pairs.first, pairs.second))
    cosines = torch.cosine_similarity(torch.tensor(first), torch.tensor(second)).numpy()
    expected = 100 * stats.spearmanr(cosines, pairs.scores).statistic
    assert trainer.evaluate()["eval_my_pairs_spearman"] == pytest.approx(expected, abs=1e-6)


def test_an_evaluator_that_gives_a_number_alone():
    class Number(SentenceEvaluator):
        def __call__(self, model, output_path=None, epoch=-1, steps=-1):
            return 0.5

    evaluation = EvaluatorList([Number()])
    assert evaluation(build_model("bert")) == {evaluation.best_metric(None): 0.5}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(["--eval_set", "stsb_dev", "sts13"], ["--eval_set", "no sts13", "dystress prepare senteval"]),
     (["--eval_file", "{own}", "{own}"], ["--eval_file", "'my_pairs'", "rename"])],
)  # fmt: skip
def test_bad_evaluations_are_one_line_and_write_nothing(flags, own, wrong, words, tmp_path, capsys):
    assert main([*flags, *(word.format(own=own) for word in wrong)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dystress train: error: ")
    assert all(word in line for word in words), line
    assert not (tmp_path / "out").exists()


def test_a_resumed_run_is_evaluated_on_the_same_pairs(flags, own, tmp_path, capsys):
    flags = [*flags, "--eval_set=none", "--save_steps=4"]
    run(flags, tmp_path / "out", "--eval_file", str(own))
    moved = tmp_path / "elsewhere" / own.name
    moved.parent.mkdir()
    moved.write_bytes(own.read_bytes())
    interrupt(tmp_path / "out")
    record, _ = run(flags, tmp_path / "out", "--eval_file", str(moved), "--resume_from_checkpoint")
    known = {"my_pairs_spearman", "my_pairs_alignment", "my_pairs_uniformity"}
    assert {
        frozenset(metrics) for metrics in (record["trained"], *record["untrained"].values())
    } == {frozenset(known)}
    moved.write_text(moved.read_text().replace("-3.5", "-3.6"))
    interrupt(tmp_path / "out")
    reset_accelerator()
    assert main([*flags, "--eval_file", str(moved), "--resume_from_checkpoint"]) == 2
    assert "--eval_file" in capsys.readouterr().err


def test_an_evaluator_of_sentence_transformers_chooses_the_step(tiny_bert, text_file, tmp_path):
    """It names its primary metric when it first measures."""
    theirs = EmbeddingSimilarityEvaluator(
        make_sentences(20, seed=5),
        make_sentences(20, seed=6),
        [i % 7 for i in range(20)],
        name="own",
    )
    run = dt.train(
        preset="small", model_name_or_path=str(tiny_bert), train_file=str(text_file), output_dir=str(tmp_path / "out"),
        max_steps=6, eval_steps=2, train_batch_size=8, learning_rate=1e-2, mixed_precision="no", eval_set=["none"],
        evaluator=theirs,
    )  # fmt: skip
    assert run.record["settings"]["metric_for_best_model"] == "own_spearman_cosine"
    log = [
        json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    ]
    measured = {
        line["step"]: line["own_spearman_cosine"] for line in log if "own_spearman_cosine" in line
    }
    assert set(measured) == {2, 4, 6}
    best = max(measured.values())
    assert measured[run.record["best_step"]] == best
    again = theirs(run.model)["own_spearman_cosine"]
    assert again == pytest.approx(best, abs=0.02)
