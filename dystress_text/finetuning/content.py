"""Checksums of all that a run reads, by which a finished or interrupted run is recognised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sentence_transformers.base.evaluation import SentenceEvaluator

from dystress_text.evaluation.evaluator_list import EvaluatorList, build_evaluators
from dystress_text.evaluation.text_sets import checksum_of
from dystress_text.finetuning.settings import LEXICAL, FineTuningSettings
from dystress_text.finetuning.texts import TrainingText, training_text
from dystress_text.io.atomic import sha256_of
from dystress_text.io.hub import model_file
from dystress_text.io.paths import model_path
from dystress_text.models.static import STATIC
from dystress_text.training.run_folder import AUDIT, RECORD
from dystress_text.training.settings import TRACKER_FOLDER

# weights, tokenizer, configuration, chat template
_FILES = {".safetensors", ".bin", ".json", ".txt", ".model", ".jinja"}
_ON_HUB = ("config.json", "modules.json", "tokenizer.json", "chat_template.jinja")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def content_of(
    settings: FineTuningSettings, text: str, evaluation: EvaluatorList
) -> dict[str, str]:
    """Return checksums of the training text, the evaluation data and the models.

    If some differ from those of a finished run, the error names their keys.

    Args:
        settings: the settings of the run.
        text: the checksum of the training text.
        evaluation: the evaluators of the run.
    """
    content = {"the training text": text[:16], "the evaluation data": evaluation.digest()[:16]}
    for option in ("model_name_or_path", "hybrid", "distill"):
        name = getattr(settings.text, option)
        if name not in (None, STATIC, LEXICAL):
            files = [(path.name, sha256_of(path)) for path in _files_of(model_path(name))]
            content[f"the content of {option}"] = checksum_of(files)[:16]
    return content


def read_content(
    settings: FineTuningSettings,
    texts: TrainingText | None = None,
    evaluator: SentenceEvaluator | None = None,
) -> dict[str, str]:
    """Read what the settings name; return its checksums as :func:`content_of` does."""
    text = texts or training_text(settings.text)
    evaluation = build_evaluators(settings.evaluation, settings.text.data_dir, evaluator)
    return content_of(settings, text.checksum(), evaluation)


def _files_of(model: str) -> Iterator[Path]:
    """Yield the files that determine a model's embeddings, in a folder or from the hub."""
    folder = Path(model)
    if not folder.is_dir():
        weights = next(filter(None, (model_file(model, name) for name in _WEIGHTS)), None)
        yield from filter(None, [weights, *(model_file(model, name) for name in _ON_HUB)])
        return
    for path in sorted(folder.rglob("*")):
        first = path.relative_to(folder).parts[0]
        is_other = first.startswith((".", "checkpoint-", TRACKER_FOLDER))
        if path.suffix in _FILES and not is_other and path.name not in (RECORD, AUDIT):
            yield path
