"""Options of SimCSE's programs exist here, or their error names the page about them."""

import re
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from simcse_cases import SENTENCES, by_hand, close, simcse_folder

from dystress_text.errors import UserError
from dystress_text.finetuning.arguments import parse
from dystress_text.programs.evaluate import main as evaluate

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "from-simcse.md").read_text(encoding="utf-8")

# of SimCSE's train.py and of TrainingArguments in transformers 4.2.1: those that exist here under
# the same name, with a value that both take, and the others
SAME = {
    "model_name_or_path": "bert-base-uncased",
    "temp": "0.05",
    "pooler_type": "cls",
    "do_mlm": "",
    "mlm_weight": "0.1",
    "mlp_only_train": "",
    "train_file": "a.txt",
    "max_seq_length": "32",
    "mlm_probability": "0.15",
    "output_dir": "out",
    "overwrite_output_dir": "",
    "gradient_accumulation_steps": "2",
    "learning_rate": "3e-5",
    "weight_decay": "0.0",
    "max_grad_norm": "1.0",
    "num_train_epochs": "1",
    "max_steps": "-1",
    "lr_scheduler_type": "linear",
    "logging_steps": "500",
    "save_steps": "500",
    "seed": "42",
    "eval_steps": "125",
    "metric_for_best_model": "stsb_spearman",
    "local_rank": "-1",
}
OTHERS = [
    "model_type", "config_name", "tokenizer_name", "no_use_fast_tokenizer", "cache_dir",
    "overwrite_cache", "model_revision", "use_auth_token", "hard_negative_weight",
    "dataset_name", "dataset_config_name", "warmup_steps", "per_device_train_batch_size",
    "per_gpu_train_batch_size", "validation_split_percentage", "do_predict", "logging_dir",
    "logging_first_step", "run_name", "disable_tqdm", "debug", "no_cuda", "tpu_num_cores",
    "tpu_metrics_debug", "sharded_ddp", "deepspeed", "adam_beta1", "adam_beta2", "adam_epsilon",
    "adafactor", "fp16_opt_level", "fp16_backend", "save_total_limit", "greater_is_better",
    "per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_accumulation_steps",
    "prediction_loss_only", "pad_to_max_length", "preprocessing_num_workers",
    "dataloader_drop_last", "dataloader_num_workers", "ignore_data_skip", "past_index",
    "no_remove_unused_columns", "label_names", "label_smoothing_factor", "do_train", "do_eval",
    "evaluation_strategy", "load_best_model_at_end", "fp16",
]  # fmt: skip


def test_options_of_the_same_name_are_taken_and_others_name_the_page(capsys):
    parse([word for option, value in SAME.items() for word in (f"--{option}", value) if word])
    with pytest.raises(UserError, match=r"^unknown option --fp16 .*docs/from-simcse\.md"):
        parse(["--fp16", "1"])
    with pytest.raises(UserError, match=r"docs/from-simcse\.md") as told:
        parse([word for option in OTHERS for word in (f"--{option}", "1")])
    assert all(f"--{option}" in str(told.value) for option in OTHERS)
    assert "mlp_only_train" not in str(told.value)
    assert evaluate(["--model", "x", "--task_set", "sts"]) == 2
    assert "docs/from-simcse.md" in capsys.readouterr().err


def test_the_pages_code_makes_both_models_of_a_checkpoint(tmp_path, monkeypatch):
    transformer, mlp = simcse_folder(tmp_path / "checkpoint")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = code.replace("princeton-nlp/sup-simcse-bert-base-uncased", str(tmp_path / "checkpoint"))
    exec(code, {})
    for folder, expected in (
        ("out", by_hand(transformer, mlp)),
        ("out-unsup", by_hand(transformer)),
    ):
        model = SentenceTransformer(folder, device="cpu")
        close(model.encode(SENTENCES, convert_to_tensor=True), expected)
