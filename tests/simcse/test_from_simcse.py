"""Every option of SimCSE's programs: in the migration table, and taken or refused as it says there."""

import re
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from simcse_cases import SENTENCES, by_hand, close, simcse_folder

from dystress_text.errors import UserError
from dystress_text.programs.train import main
from dystress_text.simcse.arguments import REPLACED, parse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "from-simcse.md").read_text(encoding="utf-8")

TAKEN = {  # of SimCSE's train.py and of transformers 4.2.1, with a value that they would take too
    "model_name_or_path": "bert-base-uncased", "temp": "0.05", "pooler_type": "cls",
    "do_mlm": "", "mlm_weight": "0.1", "mlp_only_train": "", "train_file": "a.txt", "max_seq_length": "32",
    "mlm_probability": "0.15", "eval_transfer": "", "output_dir": "out", "overwrite_output_dir": "", "do_train": "",
    "do_eval": "", "evaluation_strategy": "steps", "per_device_train_batch_size": "64",
    "gradient_accumulation_steps": "2", "learning_rate": "3e-5", "weight_decay": "0.0", "max_grad_norm": "1.0",
    "num_train_epochs": "1", "max_steps": "-1", "lr_scheduler_type": "linear", "logging_steps": "500",
    "save_steps": "500", "seed": "42", "fp16": "", "eval_steps": "125",
    "load_best_model_at_end": "", "metric_for_best_model": "stsb_spearman",
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
        with pytest.raises(UserError, match=r"^--debug: this option of SimCSE is not available: .*from-simcse.md.$"):
            parse(words)


def test_the_table_of_defaults_is_the_programs():
    rows = {line.split("`")[1].removeprefix("--"): line.strip("| ").split(" | ")[2] for line in section("Defaults")}
    settings = parse([]).options()
    settings["per_device_train_batch_size"] = settings["train_batch_size"]
    assert settings["output_dir"] == rows["output_dir"].strip("`")
    for name in ("num_train_epochs", "learning_rate", "per_device_train_batch_size", "eval_steps", "logging_steps",
                 "save_steps"):  # fmt: skip
        assert settings[name] == float(re.match(r"[\de.-]+", rows[name])[0]), name


def test_its_command_line_is_taken_as_it_is():
    command = PAGE.split("\npython train.py ")[1].split("\n```")[0].replace("\\\n", " ").split()
    settings = parse(command)
    assert (settings.engine.mixed_precision, settings.text.mlp_only_train) == ("fp16", True)
    assert (str(settings.loss), settings.engine.metric_for_best_model) == ("infonce(0.05)", "stsb_spearman")


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


@pytest.mark.parametrize("raw", [True, False])
def test_the_pages_code_makes_both_models_of_a_checkpoint(raw, tmp_path, monkeypatch):
    transformer, mlp = simcse_folder(tmp_path / "checkpoint", raw=raw)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code.replace("princeton-nlp/sup-simcse-bert-base-uncased", str(tmp_path / "checkpoint")), {})
    for folder, expected in (("out", by_hand(transformer, mlp)), ("out-unsup", by_hand(transformer))):
        close(SentenceTransformer(folder, device="cpu").encode(SENTENCES, convert_to_tensor=True), expected)
