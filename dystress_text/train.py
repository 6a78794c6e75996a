"""Fine-tune an encoder with unsupervised SimCSE and a similarity-dependent temperature.

    accelerate launch dystress_text/train.py                          # the paper's run: BERT-base, Wiki1M, STS-B dev
    python dystress_text/train.py --preset quickstart                 # no network, no GPU
    accelerate launch dystress_text/train.py --train_file mine.txt    # own sentences, one a line
    accelerate launch dystress_text/train.py --temp 0.05              # SimCSE's constant temperature
    accelerate launch dystress_text/train.py settings.yaml --seed 1   # settings from a file, flags on top

The model lands in ``out/`` (``--output_dir``) in sentence-transformers' format.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import transformers
import yaml
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import HfArgumentParser, PreTrainedTokenizerBase

from dystress_text.core.gather import ProcessGather
from dystress_text.core.temperature import TemperatureError
from dystress_text.corpus import TokenizedCorpus, load_corpus
from dystress_text.encoder import POOLERS, SentenceEncoder, load_encoder
from dystress_text.engine import Trainer, TrainingSummary, find_checkpoint, make_accelerator
from dystress_text.errors import UserError
from dystress_text.locate import CHECKOUT, eval_pairs, wiki1m
from dystress_text.presets import PRESETS, find_preset
from dystress_text.quickstart import write_documentation_corpus
from dystress_text.settings import EngineSettings, LossSettings, RunSettings, TextSettings
from dystress_text.simcse import SimcseTask, build_objective, metrics
from dystress_text.sts import StsPairs, score_vectors

RUN_FILES = ("run.json", "metrics.jsonl", "checkpoint", ".checkpoint-writing", "logs")


class OneLineParser(HfArgumentParser):
    """Raises a one-line error where argparse would print its whole usage."""

    def error(self, message: str) -> NoReturn:
        """Raise the message."""
        raise UserError(f"{message} (see --help)")


def parse(argv: Sequence[str]) -> RunSettings:
    """Settings from defaults, a preset, a YAML file and flags, each on top of the one before.

    Raises:
        UserError: an unknown name or a value out of range.
    """
    groups: list[Any] = [TextSettings, LossSettings, EngineSettings]
    parser = OneLineParser(
        groups,
        prog="train.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    known = "; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.items())
    parser.add_argument("--preset", help=f"Settings by name. {known}".replace("%", "%%"))
    argv = list(argv)
    if argv and argv[0].endswith((".yaml", ".yml")):
        argv = [*_flags_of(Path(argv[0])), *argv[1:]]
    preset = OneLineParser([], add_help=False, allow_abbrev=False)
    preset.add_argument("--preset", default="paper")
    parser.set_defaults(**find_preset(preset.parse_known_args(argv)[0].preset).settings)
    text, loss, engine, _, unknown = parser.parse_args_into_dataclasses(
        argv, return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        parser.error(f"unknown option {' '.join(unknown)}")
    return RunSettings(text, loss, engine)


def _flags_of(file: Path) -> list[str]:
    """A YAML file's settings as flags, so that they are read and checked as flags are."""
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file}: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise UserError(f"{file}: a mapping of option names to values is expected")
    for key, value in settings.items():
        if not isinstance(value, (str, int, float, bool, type(None))):
            raise UserError(f"{file}: the value of {key} must be a text, a number, true, false or null")
    return [word for key, value in settings.items() if value is not None for word in (f"--{key}", str(value))]


def train(settings: RunSettings) -> dict[str, Any]:
    """Run the whole recipe and return what ``run.json`` holds.

    Raises:
        UserError: something that the settings or the data must put right, or a run that cannot go on.
        TemperatureError: a temperature reached zero during the run.
    """
    text, engine = settings.text, settings.engine
    accelerator = make_accelerator(engine)
    show = accelerator.is_main_process
    output = Path(engine.output_dir)
    _check_output(output, engine)
    processes = accelerator.num_processes
    gather = ProcessGather(accelerator.process_index, processes) if processes > 1 else None
    objective = build_objective(settings.loss, gather)
    train_file = _train_file(text)
    dev = eval_pairs(text.eval_set, text.data_dir)
    set_seed(engine.seed)
    model, tokenizer = load_encoder(_model_path(text.model_name_or_path), text.pooler_type, text.mlp_head)
    model.to(accelerator.device)
    with accelerator.main_process_first():
        corpus = load_corpus(train_file, tokenizer, text.max_seq_length, text.max_train_samples, progress=show)
    task = SimcseTask(model, tokenizer, corpus, objective, dev)
    if dev is not None:
        engine.metric_for_best_model = _best_metric(dev, engine.metric_for_best_model)
    trainer = Trainer(task, len(corpus), engine, accelerator)
    accelerator.wait_for_everyone()  # all have looked at the folder before one of them writes there
    before: dict[str, dict[str, float]] = {}
    if show:
        _prepare_output(output, engine)
        _say(f"{corpus.report.summary()} ({train_file})")
        _say(f"{type(objective).__name__} with {objective.temperature}")
        _say(f"{trainer.total_steps:,} steps of {trainer.order.batch_size} sentences on {_device(accelerator)}")
        before = untrained(dev, model, tokenizer) if dev is not None else {}
    accelerator.wait_for_everyone()
    summary = trainer.fit()
    record = _record(settings, accelerator, corpus, before, summary, task.padding_share)
    if show:
        (output / "run.json").write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
        _report(dev, record, settings, output)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return record


def untrained(dev: StsPairs, model: SentenceEncoder, tokenizer: PreTrainedTokenizerBase) -> dict[str, dict[str, float]]:
    """What each pooler reaches on the encoder as it is: metrics by pooler, the best one first."""
    vectors = model.encode(dev.sentences, tokenizer, poolers=POOLERS)
    assert isinstance(vectors, dict)
    results = {name: metrics(dev, score_vectors(dev, vectors[name])) for name in POOLERS}
    return dict(sorted(results.items(), key=lambda item: -item[1][f"{dev.slug}_spearman"]))


def _best_metric(dev: StsPairs, name: str | None) -> str:
    known = [f"{dev.slug}_{kind}" for kind in ("spearman", "alignment", "uniformity")]
    if name is not None and name not in known:
        raise UserError(f"--metric_for_best_model: no {name!r}; known are {', '.join(known)}")
    return name or known[0]


def _train_file(text: TextSettings) -> Path:
    if text.train_file is None:
        return wiki1m(text.data_dir)
    if text.train_file == "python-documentation":
        return write_documentation_corpus()
    if not Path(text.train_file).is_file():
        raise UserError(f"--train_file: no file {text.train_file!r}")
    return Path(text.train_file)


def _model_path(name: str) -> str:
    """A model folder of the checkout is found from any working directory."""
    return str(CHECKOUT / name) if name.startswith("data/embedded/") and not Path(name).exists() else name


def _check_output(output: Path, engine: EngineSettings) -> None:
    occupied = output.is_file() or (output.is_dir() and any(output.iterdir()))
    if engine.overwrite_output_dir and output.is_dir() and occupied:
        if not (output / "metrics.jsonl").is_file():
            raise UserError(f"--overwrite_output_dir: {str(output)!r} holds no run of this program: nothing touched")
    elif engine.resume_from_checkpoint:
        find_checkpoint(output)
    elif occupied and not engine.overwrite_output_dir:
        raise UserError(
            f"--output_dir: {str(output)!r} is not empty and may hold another run; name another folder, or add "
            "--overwrite_output_dir or --resume_from_checkpoint"
        )


def _prepare_output(output: Path, engine: EngineSettings) -> None:
    """Make the folder; with --overwrite_output_dir take the old run's RUN_FILES away."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "metrics.jsonl").open("a").close()
    except OSError as error:
        raise UserError(f"--output_dir: cannot write to {str(output)!r}: {error.strerror}") from error
    if engine.overwrite_output_dir:
        for name in RUN_FILES:
            path = output / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _record(
    settings: RunSettings,
    accelerator: Accelerator,
    corpus: TokenizedCorpus,
    before: dict[str, dict[str, float]],
    summary: TrainingSummary,
    padding_share: float,
) -> dict[str, Any]:
    packages = ("dystress-text", "torch", "transformers", "accelerate", "sentence-transformers", "tokenizers")
    return {
        "settings": {**vars(settings.text), **vars(settings.loss), **vars(settings.engine)},
        "corpus": asdict(corpus.report),
        "untrained": before,
        "trained": summary.metrics,
        "best_step": summary.best_step,
        "steps": summary.steps,
        "train_seconds": round(summary.seconds, 2),
        "sentences_per_second": round(summary.samples_per_second, 1),
        "peak_memory_gb": round(summary.peak_memory_gb, 3),
        "padding_share": round(padding_share, 4),
        "processes": accelerator.num_processes,
        "device": _device(accelerator),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }


def _report(dev: StsPairs | None, record: dict[str, Any], settings: RunSettings, output: Path) -> None:
    _say(
        f"{record['sentences_per_second']:,.0f} sentences/s, {record['train_seconds']:,.0f} s of training, "
        f"peak memory {record['peak_memory_gb']:.2f} GB, {100 * record['padding_share']:.1f} % padding"
    )
    if dev is not None:
        pooler = settings.text.pooler_type
        best = next(iter(record["untrained"]))
        rows = [("untrained, best pooler", best, record["untrained"][best])]
        if best != pooler:
            rows.append(("untrained", pooler, record["untrained"][pooler]))
        rows.append((f"trained, step {record['best_step']}", pooler, record["trained"]))
        _say(f"\n{dev.name:24} {'pooler':16} {'Spearman':>8} {'alignment':>9} {'uniformity':>10}")
        for name, row_pooler, values in rows:
            spearman, alignment, uniformity = (
                values[f"{dev.slug}_{k}"] for k in ("spearman", "alignment", "uniformity")
            )
            _say(f"{name:24} {row_pooler:16} {spearman:8.2f} {alignment:9.4f} {uniformity:10.4f}")
    _say(f"\nSentenceTransformer({str(output)!r}) loads the model.")


def _device(accelerator: Accelerator) -> str:
    return f"{accelerator.num_processes} x {accelerator.device.type}, precision {accelerator.mixed_precision}"


def _say(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.formatwarning = lambda message, *_, **__: f"train.py: warning: {message}\n"
    try:
        train(parse(sys.argv[1:] if argv is None else argv))
    except UserError as error:
        message = str(error)
    except TemperatureError as error:
        message = f"--alpha, --a_0: {error}"
    else:
        return 0
    print(f"train.py: error: {message}", file=sys.stderr, flush=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
