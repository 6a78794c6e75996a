"""Every option of SimCSE's programs: in the migration table, and taken or refused as it says there."""

import re
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from simcse_cases import SENTENCES, by_hand, close, simcse_folder

from dystress_text.errors import UserError
from dystress_text.programs.train import main
from dystress_text.simcse.arguments import REPLACED, parse
from vision.train import parse as parse_images

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "from-simcse.md").read_text(encoding="utf-8")

TAKEN = {  # of SimCSE's train.py and of transformers 4.2.1, with a value that they would take too
    "model_name_or_path": "bert-base-uncased", "temp": "0.05", "pooler_type": "cls",
    "do_mlm": "", "mlm_weight": "0.1", "mlp_only_train": "", "train_file": "a.txt", "max_seq_length": "32",
    "mlm_probability": "0.15", "eval_transfer": "", "output_dir": "out", "overwrite_output_dir": "", "do_train": "",
    "do_eval": "", "evaluation_strategy": "steps", "per_device_train_batch_size": "64",
    "gradient_accumulation_steps": "2", "learning_rate": "3e-5", "weight_decay": "0.0", "max_grad_norm": "1.0",
    "num_train_epochs": "1", "max_steps": "-1", "lr_scheduler_type": "linear", "logging_steps": "500",
    "save_steps": "500", "seed": "42", "fp16": "", "eval_steps": "125",
    "load_best_model_at_end": "", "metric_for_best_model": "stsb_spearman", "local_rank": "-1",
}  # fmt: skip


def section(title):
    """The rows of the tables below a heading."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| `")]


def test_each_option_of_training_is_in_the_table_and_does_what_it_says():
    found = {}
    for line in section("train.py"):
        options, answer, *_ = line.split(" | ")
        found |= dict.fromkeys(re.findall(r"`--(\w+)`", options), answer)
    refused = {option for option, answer in found.items() if answer == "refused"}
    assert found.keys() - refused == TAKEN.keys()
    for option, value in TAKEN.items():
        parse([f"--{option}", *([value] if value else [])])
    in_files = {"--use_fast_tokenizer", "--remove_unused_columns"}  # as texts in the table
    assert {f"--{option}" for option in refused} | in_files == REPLACED.keys()
    for words in (["--debug", "1"], ["--debug=1"]):
        with pytest.raises(
            UserError, match=r"^--debug: this option of SimCSE is not available: .*from-simcse.md.$"
        ):
            parse(words)


def test_the_table_of_defaults_is_the_programs():
    rows = {
        line.split("`")[1].removeprefix("--"): line.strip("| ").split(" | ")[2]
        for line in section("Defaults")
    }
    settings = parse([]).options()
    assert settings["output_dir"] == rows["output_dir"].strip("`")
    for name in (
        "num_train_epochs",
        "learning_rate",
        "train_batch_size",
        "eval_steps",
        "logging_steps",
        "save_steps",
    ):
        assert settings[name] == float(re.match(r"[\de.-]+", rows[name])[0]), name


COMMAND = PAGE.split("\npython train.py ")[1].split("\n```")[0].replace("\\\n", " ").split()
# what run_unsup_example.sh and run_sup_example.sh have otherwise than the page's line, and what
# each makes of it
PUBLISHED = [
    (1, 512, "--per_device_train_batch_size 512 --learning_rate 5e-5"),
    (
        4,
        512,
        "--per_device_train_batch_size 128 --learning_rate 5e-5 --num_train_epochs 3 --train_file nli.csv",
    ),
]


@pytest.mark.parametrize(("processes", "batch", "own"), PUBLISHED)
def test_its_published_scripts_are_taken_as_they_are(processes, batch, own, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    for words in (
        [*COMMAND, *own.split()],
        [*COMMAND, *own.replace(" -", "|-").replace(" ", "=").split("|")],
    ):
        settings = parse(words)
        engine = settings.engine
        assert (engine.train_batch_size, engine.learning_rate, engine.mixed_precision) == (
            batch,
            5e-5,
            "fp16",
        )
        assert (engine.num_train_epochs, engine.max_steps) == (3 if "nli" in own else 1, -1)
        assert (str(settings.loss), settings.text.mlp_only_train) == ("infonce(0.05)", True)
        assert (engine.eval_steps, engine.metric_for_best_model) == (125, "stsb_spearman")


def test_options_with_another_name_or_a_value_here():
    assert parse(["--evaluation_strategy", "no", "--eval_steps=9"]).engine.eval_steps == 0
    for words, said in (
        (
            "--hard_negative_weight 1",
            r"is part of the loss: --loss \"infonce\(0.05, hard_negative_weight=W\)\"",
        ),
        ("--evaluation_strategy=epoch", "--eval_steps N, with the steps of an epoch"),
        ("--do_train false", "dystress senteval --model NAME"),
        ("--do_train --temp=0.05 --warmup_steps=10", "use --warmup_ratio"),
    ):
        with pytest.raises(
            UserError, match=rf"this option of SimCSE is not available: .*{said}.*from-simcse.md"
        ):
            parse(words.split())


@pytest.mark.parametrize("name", ["--local-rank", "--local_rank"])
@pytest.mark.parametrize("parse_line", [parse, parse_images])
def test_the_rank_that_torchs_launcher_passes_is_that_of_its_environment(
    name, parse_line, monkeypatch
):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert parse_line([f"{name}=1", "--seed=3"]).options() == parse_line(["--seed=3"]).options()
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(
        UserError, match=r"^local_rank: 1, but LOCAL_RANK is not; start with torchrun"
    ):
        parse_line([f"{name}=1"])
    assert parse_line([name, "-1"]).options() == parse_line([]).options()


def test_flags_may_have_a_value(capsys):
    for on in (["--fp16", "True", "--do_train", "yes"], ["--fp16=1", "--load_best_model_at_end=t"]):
        assert parse(on).engine.mixed_precision == "fp16"
    assert parse(["--fp16", "False"]).engine.mixed_precision == "no"
    for words, tasks in (
        (["true"], ["all"]),
        (["0"], None),
        (["MR", "TREC", "--fp16"], ["MR", "TREC"]),
    ):
        assert parse(["--eval_transfer", *words]).evaluation.eval_transfer == tasks
    assert main(["--fp16", "maybe"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("raw", [True, False])
def test_the_pages_code_makes_both_models_of_a_checkpoint(raw, tmp_path, monkeypatch):
    transformer, mlp = simcse_folder(tmp_path / "checkpoint", raw=raw)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(
        code.replace("princeton-nlp/sup-simcse-bert-base-uncased", str(tmp_path / "checkpoint")), {}
    )
    for folder, expected in (
        ("out", by_hand(transformer, mlp)),
        ("out-unsup", by_hand(transformer)),
    ):
        close(
            SentenceTransformer(folder, device="cpu").encode(SENTENCES, convert_to_tensor=True),
            expected,
        )
