"""The command line of the text program, which may be one of SimCSE's ``train.py``.

Of SimCSE's options that do not exist here under the same name, some are its own, the others come
from ``TrainingArguments`` of transformers 4.2. docs/from-simcse.md has the table.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from dystress_text.cli.options import TRUTH
from dystress_text.errors import UserError
from dystress_text.simcse.settings import PROGRAM, RunSettings
from dystress_text.training.presets import parse_options

COMMON = (  # what --help shows
    "model_name_or_path", "train_file", "sample", "views", "supervised", "pooler_type", "max_seq_length", "loss",
    "eval_set", "eval_file", "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "seed",
    "num_train_epochs", "max_steps", "train_batch_size", "learning_rate",
)  # fmt: skip


def parse(argv: Sequence[str], description: str | None = None) -> RunSettings:
    """Settings from the command line."""
    return RunSettings.of(
        parse_options(PROGRAM, translate(argv), "dystress train", description, COMMON)
    )


# flags: what they are here when on and when off; a text says why that is refused
FLAGS: dict[str, tuple[tuple[str, ...], tuple[str, ...] | str]] = {
    "--do_train": (
        (),
        "this program trains; dystress senteval --model NAME evaluates a model as it is",
    ),
    "--do_eval": ((), "--eval_set none leaves evaluation out"),
    "--load_best_model_at_end": ((), "--eval_steps 0 keeps the last model"),
    "--fp16": (("--mixed_precision", "fp16"), ("--mixed_precision", "no")),
    "--bf16": (("--mixed_precision", "bf16"), ("--mixed_precision", "no")),
    "--eval_transfer": (("--eval_transfer", "all"), ()),
}

# options that are refused, with what to use instead
REPLACED: dict[str, str] = {
    "--model_type": "training starts from a checkpoint; --model_name_or_path names it",
    "--cache_dir": "the environment variables HF_HOME (models) and DYSTRESS_CACHE (tokens) set the folders",
    "--model_revision": "download the revision with `hf download NAME --revision REVISION` and give its folder",
    "--use_auth_token": "use the environment variable HF_TOKEN or `hf auth login`",
    "--validation_split_percentage": "--held_out N with --views crop; --eval_set and --eval_file evaluate",
    "--pad_to_max_length": "nothing is computed for padding",
    "--do_predict": "dystress senteval --model evaluates a trained model",
    "--prediction_loss_only": "--eval_set none leaves the metrics out",
    "--per_gpu_train_batch_size": "use --train_batch_size, of all processes together",
    "--hard_negative_weight": "it is part of the loss: --loss \"infonce(0.05, hard_negative_weight=W)\"",
    "--save_total_limit": "the newest two checkpoints are kept",
    "--warmup_steps": "use --warmup_ratio, a share of the steps",
    "--logging_dir": "trackers write below --output_dir",
    "--logging_first_step": "use --logging_steps 1",
    "--no_cuda": "use accelerate launch --cpu, or the environment variable ACCELERATE_USE_CPU=true",
    "--debug": "metrics.jsonl and --log_similarity show what happens",
    "--run_name": "--output_dir names a run",
    "--ignore_data_skip": "--resume_from_checkpoint continues with the next batch without reading the earlier ones",
    **dict.fromkeys(("--config_name", "--tokenizer_name"), "both come with --model_name_or_path"),
    **dict.fromkeys(("--dataset_name", "--dataset_config_name"), "--train_file takes OWNER/NAME of one on the hub"),
    **dict.fromkeys(("--per_device_eval_batch_size", "--per_gpu_eval_batch_size"), "it takes 64 sentences at a time"),
    **dict.fromkeys(("--fp16_opt_level", "--fp16_backend"), "--mixed_precision is torch's own"),
    **dict.fromkeys(("--remove_unused_columns", "--no_remove_unused_columns", "--label_names"),
                    "--text_columns says what is read"),
    **dict.fromkeys(("--adam_beta1", "--adam_beta2", "--adam_epsilon", "--adafactor"), "AdamW has its usual values"),
    **dict.fromkeys(("--tpu_num_cores", "--tpu_metrics_debug"), "accelerate launch sets it"),
    **dict.fromkeys(("--sharded_ddp", "--deepspeed"), "each process has the whole model (docs/distributed.md)"),
    **dict.fromkeys(
        ("--use_fast_tokenizer", "--no_use_fast_tokenizer", "--overwrite_cache", "--preprocessing_num_workers",
         "--eval_accumulation_steps", "--dataloader_drop_last", "--dataloader_num_workers", "--past_index",
         "--disable_tqdm", "--greater_is_better", "--label_smoothing_factor"), "nothing is to be set for it here",
    ),
}  # fmt: skip


def _batch_size(of_one: str) -> list[str]:
    """The batch of all processes from that of each one; the launcher tells their number."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return ["--train_batch_size", str(int(of_one) * processes) if of_one.isdigit() else of_one]


def _strategy(when: str) -> list[str]:
    """When to evaluate; SimCSE's scripts say steps."""
    if when not in ("steps", "no"):
        raise _refused(
            f"--evaluation_strategy {when}", "--eval_steps N, with the steps of an epoch"
        )
    return ["--eval_steps", "0"] if when == "no" else []


VALUES = {"--per_device_train_batch_size": _batch_size, "--evaluation_strategy": _strategy}


def translate(argv: Sequence[str]) -> list[str]:
    """Translate a command line of SimCSE into one of this program; a value may follow its option or
    an equals sign.
    """
    words: list[str] = []
    last: list[str] = []  # which holds whatever stands beside it
    left = list(argv)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name in REPLACED:
            raise _refused(name, REPLACED[name])
        if name in VALUES:
            value = value if equals or not left else left.pop(0)
            last += VALUES[name](value)
            continue
        if name in FLAGS and not equals:
            follows = left[0].lower() if left else "--"
            value = left.pop(0) if follows in TRUTH else "true" if follows.startswith("--") else ""
        if name not in FLAGS or value.lower() not in TRUTH:
            words.append(word)  # as it is; a value that is none is refused by the parser
            continue
        on, off = FLAGS[name]
        meaning = on if TRUTH[value.lower()] else off
        if isinstance(meaning, str):
            raise _refused(f"{name} {value}", meaning)
        words += meaning
    return words + last


def _refused(what: str, instead: str) -> UserError:
    return UserError(
        f"{what}: this option of SimCSE is not available: {instead} (docs/from-simcse.md)"
    )
