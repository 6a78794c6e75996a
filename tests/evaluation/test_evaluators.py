"""What a run is evaluated on: several evaluators beside each other, and a run that takes no notice
of them.
"""

import json

import pytest
import torch
from conftest import make_sentences, reset_accelerator
from safetensors.torch import load_file
from trainer_cases import interrupt

from dystress_text.errors import UserError
from dystress_text.evaluation.evaluators import Evaluation, build_evaluation
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
    beside, log = run(flags, tmp_path / "beside", "--eval_file", str(own), *more)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("alone", "beside"))
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
    page = (tmp_path / "beside" / "report.html").read_text()
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
    assert build_evaluation(EvaluationSettings(eval_set=sets), data_dir).best_metric(name) == metric


def test_unknown_metrics_and_names_of_other_evaluators(data_dir):
    class Transfer:
        best_metrics = ("avg_transfer_dev", "mr_dev_accuracy", "eval_own")

    best = Evaluation([Transfer()]).best_metric
    assert best("eval_avg_transfer") == best("avg_transfer") == "avg_transfer_dev"
    assert best("eval_MR") == best("MR") == "mr_dev_accuracy"
    assert best("eval_own") == "eval_own"
    with pytest.raises(
        UserError, match=r"known: mini_sts_spearman, sts_b_dev_spearman, avg_spearman$"
    ):
        build_evaluation(EvaluationSettings(eval_set=BOTH), data_dir).best_metric(
            "eval_sickr_spearman"
        )
    with pytest.raises(UserError, match="evaluates nothing"):
        Evaluation([]).best_metric("avg")


def test_an_evaluator_that_draws_numbers_does_not_move_the_run_and_gives_figures_that_exist():
    class Careless:
        best_metrics = ("x",)

        def __call__(self, embed):
            torch.manual_seed(0)
            return {"x": float(torch.rand(())), "y": float("nan")}

    torch.manual_seed(7)
    expected = torch.rand(())
    torch.manual_seed(7)
    assert Evaluation([Careless()])(lambda s: torch.zeros(len(s), 2)).keys() == {"x"}
    assert torch.rand(()) == expected


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
