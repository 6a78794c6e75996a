"""Every option of SimCSE's programs: in the migration table, and taken or refused as it says there."""

import re

import pytest
import yaml

from dystress_text.errors import UserError
from dystress_text.files.places import CHECKOUT
from dystress_text.senteval import main as evaluate
from dystress_text.senteval import make_parser
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.flags import REPLACED

PAGE = (CHECKOUT / "docs" / "from-simcse.md").read_text(encoding="utf-8")

# SimCSE's train.py, and TrainingArguments of the transformers (4.2.1) that it pins
OWN = [
    "model_name_or_path",
    "model_type",
    "config_name",
    "tokenizer_name",
    "cache_dir",
    "use_fast_tokenizer",
    "model_revision",
    "use_auth_token",
    "temp",
    "pooler_type",
    "hard_negative_weight",
    "do_mlm",
    "mlm_weight",
    "mlp_only_train",
    "dataset_name",
    "dataset_config_name",
    "overwrite_cache",
    "validation_split_percentage",
    "preprocessing_num_workers",
    "train_file",
    "max_seq_length",
    "pad_to_max_length",
    "mlm_probability",
    "eval_transfer",
]
TRAINING_ARGUMENTS = [
    "output_dir",
    "overwrite_output_dir",
    "do_train",
    "do_eval",
    "do_predict",
    "model_parallel",
    "evaluation_strategy",
    "prediction_loss_only",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "per_gpu_train_batch_size",
    "per_gpu_eval_batch_size",
    "gradient_accumulation_steps",
    "eval_accumulation_steps",
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "num_train_epochs",
    "max_steps",
    "lr_scheduler_type",
    "warmup_steps",
    "logging_dir",
    "logging_first_step",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "no_cuda",
    "seed",
    "fp16",
    "fp16_opt_level",
    "fp16_backend",
    "local_rank",
    "tpu_num_cores",
    "tpu_metrics_debug",
    "debug",
    "dataloader_drop_last",
    "eval_steps",
    "dataloader_num_workers",
    "past_index",
    "run_name",
    "disable_tqdm",
    "remove_unused_columns",
    "label_names",
    "load_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
    "ignore_data_skip",
    "sharded_ddp",
    "deepspeed",
    "label_smoothing_factor",
    "adafactor",
    "group_by_length",
    "report_to",
    "ddp_find_unused_parameters",
    "dataloader_pin_memory",
]
TAKEN = {  # with a value that SimCSE would take too
    "model_name_or_path": "bert-base-uncased", "temp": "0.05", "pooler_type": "cls", "hard_negative_weight": "0",
    "do_mlm": "", "mlm_weight": "0.1", "mlp_only_train": "", "train_file": "a.txt", "max_seq_length": "32",
    "mlm_probability": "0.15", "eval_transfer": "", "output_dir": "out", "overwrite_output_dir": "", "do_train": "",
    "do_eval": "", "evaluation_strategy": "steps", "per_device_train_batch_size": "64",
    "gradient_accumulation_steps": "2", "learning_rate": "3e-5", "weight_decay": "0.0", "max_grad_norm": "1.0",
    "num_train_epochs": "1", "max_steps": "-1", "lr_scheduler_type": "linear", "logging_steps": "500",
    "save_steps": "500", "save_total_limit": "3", "seed": "42", "fp16": "", "eval_steps": "125",
    "load_best_model_at_end": "", "metric_for_best_model": "stsb_spearman", "report_to": "none",
}  # fmt: skip


def section(title):
    """The rows of the tables below a heading."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("option", [*OWN, *TRAINING_ARGUMENTS])
def test_each_option_of_training_is_in_the_table_and_does_what_it_says(option):
    (row,) = [line for line in section("train.py") if re.search(rf"`--{option}\b( steps)?`", line.split(" | ")[0])]
    answer = row.split(" | ")[1]
    if option in TAKEN:
        assert answer.startswith(("the same", "taken"))
        parse([f"--{option}", *([TAKEN[option]] if TAKEN[option] else [])])
        value = {"": "true"}.get(TAKEN[option], TAKEN[option])
        if option != "eval_transfer":
            parse([f"--{option}={value}"])
    else:
        assert answer == "refused"
        with pytest.raises(
            UserError, match=f"--{option}: this option of SimCSE is not available: .*from-simcse.md"
        ) as told:
            parse([f"--{option}", "1"])
        assert "\n" not in str(told.value)
        with pytest.raises(UserError, match=f"--{option}: this option of SimCSE"):
            parse([f"--{option}=1"])


def test_nothing_else_is_refused_by_name():
    assert {f"--{name}" for name in [*OWN, *TRAINING_ARGUMENTS] if name not in TAKEN} == set(REPLACED)


def test_its_command_line_runs_as_it_is():
    command = PAGE.split("    python train.py ")[1].split("\n\n")[0].replace("\\\n", " ").split()
    settings = parse(command)
    assert settings.engine.mixed_precision == "fp16"
    assert settings.text.mlp_only_train is True
    assert settings.loss.temp == 0.05


def test_flags_may_have_a_value():
    assert parse(["--fp16", "True", "--do_train", "True"]).engine.mixed_precision == "fp16"
    assert parse(["--fp16", "False", "--do_eval", "False"]).engine.mixed_precision == "auto"


def test_a_file_of_its_options_is_read(tmp_path):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"do_train": True, "temp": 0.05, "evaluation_strategy": "steps"}))
    assert parse([str(tmp_path / "s.yaml")]).loss.temp == 0.05
    (tmp_path / "s.yaml").write_text("warmup_steps: 10\n")
    with pytest.raises(UserError, match="--warmup_steps: this option of SimCSE is not available: use --warmup_ratio"):
        parse([str(tmp_path / "s.yaml")])


@pytest.mark.parametrize("option", ["--model_name_or_path", "--pooler", "--mode", "--task_set", "--tasks"])
def test_each_option_of_evaluation_is_in_the_table(option):
    assert any(option in line.split(" | ")[0] for line in section("evaluation.py"))


def test_what_the_table_names_for_evaluation_is_taken():
    for line in section("evaluation.py"):
        for command in re.findall(
            r"`(?:python eval/senteval.py )?(--(?:model|pooler_type|tasks|mode) [^`]*)`", line.split(" | ")[1]
        ):
            words = command.replace(",", "").split()
            make_parser().parse_args([*([] if "--model" in words else ["--model", "out"]), *words])


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["--model_name_or_path", "a"], "--model_name_or_path: here it is --model"),
        (["--model", "a", "--pooler", "cls"], "--pooler: here it is --pooler_type"),
        (["--model", "a", "--mode", "dev"], "--mode=dev: here it is train.py --eval_set stsb_dev sickr_dev"),
        (["--model", "a", "--mode=fasttest"], "--mode=fasttest: here it is --mode fast"),
        (["--model", "a", "--task_set", "sts"], "--task_set: here it is --tasks sts, transfer or all"),
    ],
)
def test_evaluation_says_what_its_options_are_called_here(capsys, words, instead):
    assert evaluate(words) == 2
    assert instead in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "SimCSE(",
        "device=",
        "encode(",
        "return_numpy",
        "normalize_to_unit",
        "keepdim",
        "batch_size",
        "max_length",
        "similarity(",
        "build_index(",
        "use_faiss",
        "faiss_fast",
        "num_cells",
        "num_cells_in_search",
        "add_to_index(",
        "search(",
        "threshold",
        "top_k",
    ],
)
def test_each_part_of_the_tool_is_in_the_table(name):
    assert any(name in line.split(" | ")[0] for line in section("tool.py"))
