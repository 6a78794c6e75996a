"""Every option of SimCSE's programs: in the migration table, and taken or refused as it says there."""

import json
import re
from pathlib import Path

import pytest
import yaml
from conftest import make_sentences
from sentence_transformers import SentenceTransformer
from simcse_cases import SENTENCES, by_hand, close, simcse_folder

from dystress_text import demo
from dystress_text.encoders.encoder import load_encoder
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import choose
from dystress_text.senteval import main as evaluate
from dystress_text.senteval import make_parser
from dystress_text.simcse.arguments import REPLACED, parse
from dystress_text.train import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "from-simcse.md").read_text(encoding="utf-8")

# SimCSE's train.py, and all of TrainingArguments of the transformers (4.2.1) that it pins
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
]
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


def section(title):
    """The rows of the tables below a heading."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("option", [*OWN, *TRAINING_ARGUMENTS])
def test_each_option_of_training_is_in_the_table_and_does_what_it_says(option):
    (row,) = [line for line in section("train.py") if re.search(rf"`(--)?{option}`", line.split(" | ")[0])]
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


NEGATED = {"no_use_fast_tokenizer", "no_remove_unused_columns"}  # on a command line of 4.2.1, of those that are on


def test_nothing_else_is_refused_by_name_or_in_the_table():
    options = {*OWN, *TRAINING_ARGUMENTS}
    assert {f"--{name}" for name in (options - set(TAKEN)) | NEGATED} == set(REPLACED)
    named = {name for line in section("train.py") for name in re.findall(r"`(?:--)?(\w+)`", line.split(" | ")[0])}
    assert named == options | NEGATED


DEFAULTS = {  # of SimCSE's train.py with TrainingArguments of 4.2.1, and here
    "num_train_epochs": (3, 1), "learning_rate": (5e-5, 3e-5), "per_device_train_batch_size": (8, 64),
    "evaluation_strategy": ("no", "steps"), "eval_steps": (500, 125), "logging_steps": (500, 10),
    "save_steps": (500, 0), "save_total_limit": ("all", 2), "temp": (0.05, "a profile"),
    "mlp_only_train": ("off", "on, with `--supervised` off"), "metric_for_best_model": ("none", "STS-B dev"),
    "fp16": ("off", "on with CUDA"), "output_dir": ("none", "out"),
}  # fmt: skip


def test_the_table_of_defaults_is_the_programs():
    rows = {line.split("`")[1].removeprefix("--"): line.strip("| ").split(" | ") for line in section("Defaults")}
    assert rows.keys() == DEFAULTS.keys()
    settings = parse([]).options()
    for name, (theirs, ours) in DEFAULTS.items():
        first, second = ([*re.findall(r"\de-\d|[\d.]+", cell), *cell.split()] for cell in rows[name][1:])
        if isinstance(theirs, str):
            assert rows[name][1].startswith(theirs)
        else:
            assert theirs in map(_number, first)
        if isinstance(ours, str):
            assert rows[name][2].strip("`").startswith(ours)
        else:
            given = settings["train_batch_size" if name == "per_device_train_batch_size" else name]
            assert ours == given
            assert ours in map(_number, second)
    assert (settings["evaluation_strategy"], settings["temp"], settings["mlp_only_train"]) == (None, None, None)
    assert (settings["eval_set"], settings["mixed_precision"]) == ("stsb_dev", "auto_fp16")


def _number(word):
    try:
        return float(word)
    except ValueError:
        return None


def test_its_command_line_runs_as_it_is():
    command = PAGE.split("\npython train.py ")[1].split("\n```")[0].replace("\\\n", " ").split()
    settings = parse(command)
    assert settings.engine.mixed_precision == "fp16"
    assert settings.text.mlp_only_train is True
    assert settings.loss.temp == 0.05


@pytest.mark.parametrize("value", ["True", "true", "yes", "1", "t"])
def test_flags_may_have_a_value(value):
    for on in (["--fp16", value, "--do_train", value], [f"--fp16={value}", f"--load_best_model_at_end={value}"]):
        assert parse(on).engine.mixed_precision == "fp16"
    assert parse(["--eval_transfer", value]).evaluation.eval_transfer == ["all"]


@pytest.mark.parametrize("value", ["False", "false", "no", "0", "F"])
def test_flags_that_are_off_are_off_or_refused(value):
    for off in (["--fp16", value], [f"--fp16={value}"]):
        assert parse(off).engine.mixed_precision == "no"
    assert parse(["--eval_transfer", value]).evaluation.eval_transfer is None
    for flag, instead in (
        ("--do_train", "dystress senteval --model NAME"),
        ("--do_eval", "--eval_set none"),
        ("--load_best_model_at_end", "--evaluation_strategy no"),
    ):
        for off in ([flag, value], [f"{flag}={value}"]):
            with pytest.raises(UserError, match=f"{flag} {value}: this option .*{instead}"):
                parse(off)


@pytest.mark.parametrize("words", [["--fp16=maybe"], ["--fp16", "maybe"], ["--evaluation_strategy", "sometimes"]])
def test_another_value_is_one_line(words, capsys):
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words[0].split("=")[0] in line


def test_names_of_tasks_after_eval_transfer_stay():
    assert parse(["--eval_transfer", "MR", "TREC", "--fp16"]).evaluation.eval_transfer == ["MR", "TREC"]


def test_a_run_by_its_words(flags, tmp_path, capsys):
    """Half an epoch, evaluated by epoch, chosen by SimCSE's name of the metric."""
    words = ["--max_steps=-1", "--num_train_epochs", "0.5", "--evaluation_strategy", "epoch", "--do_train", "--do_eval"]
    assert main([*flags, *words, "--metric_for_best_model", "eval_stsb_spearman", "--load_best_model_at_end"]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["steps"] == 13  # of 25
    assert record["settings"]["metric_for_best_model"] == "sts_b_dev_spearman"
    assert main([*flags, *words, "--do_train", "False", "--overwrite_output_dir"]) == 2
    assert "--do_train False: this option of SimCSE is not available: this program trains" in capsys.readouterr().err


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
            options = make_parser().parse_args([*([] if "--model" in words else ["--model", "out"]), *words])
            choose("senteval", options.tasks)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["--model_name_or_path", "a"], "--model_name_or_path: here it is --model"),
        (["--model", "a", "--pooler", "cls"], "--pooler: here it is --pooler_type"),
        (["--model", "a", "--mode", "dev"], "--mode=dev: here it is dystress train --eval_set stsb_dev sickr_dev"),
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
        "pooler=",
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


def test_the_tools_words_do_what_the_table_says(tiny_bert, tmp_path):
    from dystress_text.search import SentenceIndex

    encoder, tokenizer = load_encoder(str(tiny_bert), "cls")
    encoder.save(tmp_path / "out", tokenizer)
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    sentences = make_sentences(12)
    words = {"device": "cpu", "convert_to_numpy": True, "normalize_embeddings": True, "batch_size": 4}
    vectors = model.encode(sentences, **words)
    assert vectors.shape == (12, 16)
    assert model.similarity(model.encode(sentences), model.encode(sentences[:3])).shape == (12, 3)
    index = SentenceIndex.build(model, sentences[:10])
    index = index.add(sentences[10:])
    found = index.search(sentences, top_k=5, threshold=0.6)
    cosines = vectors @ vectors.T
    for matches, row in zip(found, cosines, strict=True):
        assert [match.score for match in matches] == pytest.approx(sorted(row[row >= 0.6])[::-1][:5], abs=1e-5)


@pytest.mark.parametrize("raw", [True, False])
def test_the_pages_code_makes_both_models_of_a_checkpoint(raw, tmp_path, monkeypatch):
    transformer, mlp = simcse_folder(tmp_path / "checkpoint", raw=raw)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code.replace("princeton-nlp/sup-simcse-bert-base-uncased", str(tmp_path / "checkpoint")), {})
    for folder, expected in (("out", by_hand(transformer, mlp)), ("out-unsup", by_hand(transformer))):
        close(SentenceTransformer(folder, device="cpu").encode(SENTENCES, convert_to_tensor=True), expected)


DEMO = [
    "model_name_or_path",
    "device",
    "sentences_dir",
    "example_query",
    "example_sentences",
    "port",
    "ip",
    "load_light",
]


def test_each_option_of_the_demo_is_in_the_table(capsys):
    rows = section("demo/flaskdemo.py")
    named = [name for line in rows for name in re.findall(r"--(\w+)", line.split(" | ")[0])]
    assert sorted(named) == sorted(DEMO)
    ours = {name for line in rows for name in re.findall(r"`--(\w+)", line.split(" | ")[1])}
    with pytest.raises(SystemExit):
        demo.main(["--help"])
    told = capsys.readouterr().out
    assert ours == {"file", "index", "port"}
    assert all(f"--{name} " in told for name in ours)
    assert demo.make_parser().parse_args(["out", "--file", "DIR/FILE", "--port", "8888"]).port == 8888


def test_the_conversions_option_is_in_the_table():
    (row,) = section("simcse_to_huggingface.py")
    assert row.startswith("| `--path FOLDER` | not needed")
