"""Every option of SimCSE's programs: in the migration table, and taken or refused as it says there."""

import json
import re
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from simcse_cases import SENTENCES, by_hand, close, simcse_folder

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import choose
from dystress_text.senteval import make_parser
from dystress_text.simcse.arguments import REPLACED, parse
from dystress_text.train import main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "from-simcse.md").read_text(encoding="utf-8")

# SimCSE's train.py, and all of TrainingArguments of the transformers (4.2.1) that it pins
LISTED = """model_name_or_path model_type config_name tokenizer_name cache_dir use_fast_tokenizer model_revision
use_auth_token temp pooler_type hard_negative_weight do_mlm mlm_weight mlp_only_train dataset_name dataset_config_name
overwrite_cache validation_split_percentage preprocessing_num_workers train_file max_seq_length pad_to_max_length
mlm_probability eval_transfer

output_dir overwrite_output_dir do_train do_eval do_predict evaluation_strategy prediction_loss_only
per_device_train_batch_size per_device_eval_batch_size per_gpu_train_batch_size per_gpu_eval_batch_size
gradient_accumulation_steps eval_accumulation_steps learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon
max_grad_norm num_train_epochs max_steps lr_scheduler_type warmup_steps logging_dir logging_first_step logging_steps
save_steps save_total_limit no_cuda seed fp16 fp16_opt_level fp16_backend local_rank tpu_num_cores tpu_metrics_debug
debug dataloader_drop_last eval_steps dataloader_num_workers past_index run_name disable_tqdm remove_unused_columns
label_names load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip sharded_ddp deepspeed
label_smoothing_factor adafactor"""
OPTIONS = LISTED.split()
TAKEN = {  # with a value that SimCSE would take too
    "model_name_or_path": "bert-base-uncased", "temp": "0.05", "pooler_type": "cls", "hard_negative_weight": "0",
    "do_mlm": "", "mlm_weight": "0.1", "mlp_only_train": "", "train_file": "a.txt", "max_seq_length": "32",
    "mlm_probability": "0.15", "eval_transfer": "", "output_dir": "out", "overwrite_output_dir": "", "do_train": "",
    "do_eval": "", "evaluation_strategy": "steps", "per_device_train_batch_size": "64",
    "gradient_accumulation_steps": "2", "learning_rate": "3e-5", "weight_decay": "0.0", "max_grad_norm": "1.0",
    "num_train_epochs": "1", "max_steps": "-1", "lr_scheduler_type": "linear", "logging_steps": "500",
    "save_steps": "500", "save_total_limit": "3", "seed": "42", "fp16": "", "eval_steps": "125",
    "load_best_model_at_end": "", "metric_for_best_model": "stsb_spearman",
}  # fmt: skip
NEGATED = {"no_use_fast_tokenizer", "no_remove_unused_columns"}  # on a command line of 4.2.1, of those that are on


def section(title):
    """The rows of the tables below a heading."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| `")]


def test_each_option_of_training_is_in_the_table_and_does_what_it_says():
    for option in OPTIONS:
        (row,) = [line for line in section("train.py") if re.search(rf"`(--)?{option}`", line.split(" | ")[0])]
        answer = row.split(" | ")[1]
        if option in TAKEN:
            assert answer.startswith(("the same", "taken"))
            parse([f"--{option}", *([TAKEN[option]] if TAKEN[option] else [])])
        else:
            assert answer == "refused"
            for words in ([f"--{option}", "1"], [f"--{option}=1"]):
                refused = f"^--{option}: this option of SimCSE is not available: .*from-simcse.md.$"
                with pytest.raises(UserError, match=refused):
                    parse(words)
    assert {f"--{name}" for name in ({*OPTIONS} - set(TAKEN)) | NEGATED} == set(REPLACED)
    named = {name for line in section("train.py") for name in re.findall(r"`(?:--)?(\w+)`", line.split(" | ")[0])}
    assert named == {*OPTIONS} | NEGATED


def test_the_table_of_defaults_is_the_programs():
    rows = {line.split("`")[1].removeprefix("--"): line.strip("| ").split(" | ")[2] for line in section("Defaults")}
    settings = parse([]).options()
    settings["per_device_train_batch_size"] = settings["train_batch_size"]
    numbers = ("num_train_epochs", "learning_rate", "per_device_train_batch_size", "eval_steps", "logging_steps",
               "save_steps", "save_total_limit")  # fmt: skip
    for name in numbers:
        assert settings[name] == float(re.match(r"[\de.-]+", rows[name])[0]), name
    assert (settings["evaluation_strategy"], settings["temp"], settings["mlp_only_train"]) == (None, None, None)
    assert (settings["output_dir"], settings["eval_set"]) == (rows["output_dir"].strip("`"), "stsb_dev")
    assert settings["mixed_precision"] == "auto_fp16"


def test_its_command_line_is_taken_as_it_is():
    command = PAGE.split("\npython train.py ")[1].split("\n```")[0].replace("\\\n", " ").split()
    settings = parse(command)
    assert (settings.engine.mixed_precision, settings.text.mlp_only_train) == ("fp16", True)
    assert (settings.loss.temp, settings.engine.metric_for_best_model) == (0.05, "stsb_spearman")


def test_flags_may_have_a_value_and_off_is_off_or_refused(tmp_path, capsys):
    for on in (["--fp16", "True", "--do_train", "yes"], ["--fp16=1", "--load_best_model_at_end=t"]):
        assert parse(on).engine.mixed_precision == "fp16"
    assert parse(["--fp16", "False"]).engine.mixed_precision == "no"
    assert parse(["--eval_transfer", "true"]).evaluation.eval_transfer == ["all"]
    assert parse(["--eval_transfer=0"]).evaluation.eval_transfer is None
    assert parse(["--eval_transfer", "MR", "TREC", "--fp16"]).evaluation.eval_transfer == ["MR", "TREC"]
    with pytest.raises(UserError, match=r"--do_train false: this option .*dystress senteval --model NAME"):
        parse(["--do_train", "false"])
    with pytest.raises(UserError, match=r"--warmup_steps: .* use --warmup_ratio"):
        parse(["--do_train", "--temp=0.05", "--warmup_steps=10"])
    assert main(["--fp16", "maybe"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_run_by_its_words(flags, tmp_path):
    """Half an epoch, evaluated by epoch, chosen by SimCSE's name of the metric."""
    words = ["--max_steps=-1", "--num_train_epochs", "0.5", "--evaluation_strategy", "epoch", "--do_train", "--do_eval"]
    assert main([*flags, *words, "--metric_for_best_model", "eval_stsb_spearman", "--load_best_model_at_end"]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["steps"] == 13  # of 25
    assert record["settings"]["metric_for_best_model"] == "sts_b_dev_spearman"


def test_what_the_table_names_for_evaluation_is_taken():
    given = " ".join(line.split(" | ")[0] for line in section("evaluation.py"))
    assert all(option in given for option in ("--model_name_or_path", "--pooler", "--mode", "--task_set", "--tasks"))
    for line in section("evaluation.py"):
        for command in re.findall(
            r"`(?:python eval/senteval.py )?(--(?:model|pooler_type|tasks|mode) [^`]*)`", line.split(" | ")[1]
        ):
            words = command.replace(",", "").split()
            options = make_parser().parse_args([*([] if "--model" in words else ["--model", "out"]), *words])
            choose("senteval", options.tasks)


@pytest.mark.parametrize("raw", [True, False])
def test_the_pages_code_makes_both_models_of_a_checkpoint(raw, tmp_path, monkeypatch):
    transformer, mlp = simcse_folder(tmp_path / "checkpoint", raw=raw)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code.replace("princeton-nlp/sup-simcse-bert-base-uncased", str(tmp_path / "checkpoint")), {})
    for folder, expected in (("out", by_hand(transformer, mlp)), ("out-unsup", by_hand(transformer))):
        close(SentenceTransformer(folder, device="cpu").encode(SENTENCES, convert_to_tensor=True), expected)
