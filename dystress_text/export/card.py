"""The model card: what a model is, how it was trained, its results, and how each consumer gets its
vectors.

``card.md`` is its form; the tables and words that depend on the run are made here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, hf_hub_download
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize

from dystress_text.cli.command_line import one_line
from dystress_text.core.temperature import DYSTRESS
from dystress_text.errors import UserError, reason_of
from dystress_text.evaluation.random_pairs import HEADER, random_pairs_rows
from dystress_text.export.citation import CITATION, SIMCSE, credits_of
from dystress_text.files.hub import hub_reachable
from dystress_text.files.whole import write_text
from dystress_text.models import hybrid_module
from dystress_text.models.hybrid import WEIGHT, hybrid_part, may_have_graph
from dystress_text.models.poolers import AVERAGED, pooler_of
from dystress_text.simcse.texts import WIKI1M
from dystress_text.training.run_record import BaseModel, RunRecord

CARD = "README.md"
HERE = "path/to/this/folder"

_FORM = Path(__file__).with_name("card.md")
_POOLINGS = {
    "avg": "the mean over the tokens of the last layer",
    "avg_top2": "the mean over the tokens of the mean of the last two layers",
    "last": "the last token of the last layer",
    "avg_first_last": "the mean over the tokens of the mean of the first and the last layer",
}
_LAYERS = ", in place of the last layer a weighted mean of all"
_SIMILARITIES = {"cosine": "cosine similarity", "dot": "dot product"}  # others are distances
_SETTINGS = (  # that the recipe repeats where they are set
    "supervised", "bidirectional", "lora", "max_seq_length", "gradient_accumulation_steps", "learning_rate",
    "lr_scheduler_type", "warmup_ratio", "weight_decay", "max_grad_norm", "seed", "preset",
)  # fmt: skip


def write_card(
    folder: Path,
    record: RunRecord,
    model: SentenceTransformer,
    layout: str = "native",
    at: str = HERE,
) -> None:
    """Write the card of a model; ``at`` is its place in the code.

    The card leaves out what the record does not have; it may be empty.
    """
    hybrid = hybrid_part(model)
    dense = None if hybrid is None else hybrid.model
    base = record.base_model if dense is None else record.beside or BaseModel()
    settings = record.settings
    limit = (model if dense is None else dense).max_seq_length or math.inf
    transformer = model.transformers_model
    pooler = pooler_of(model)
    pooling = _POOLINGS.get(str(pooler), "the first token of the last layer")
    if pooler is None:
        pooling += _LAYERS
    name, data_name, data_license = base.name, *_data(settings)
    variants = record.data_variants
    data = (
        f"{data_name}; not the published data but a variant: {v}"
        if (v := variants.get("train_file"))
        else data_name
    )
    prompts = [(role, prompt) for role, prompt in model.prompts.items() if prompt]
    is_published = (
        "train_file" in settings
        and settings["train_file"] is None
        and not variants.get("train_file")
    )
    text = ModelCard.from_template(
        _metadata(base, layout, is_published, credits := credits_of(record)),
        template_str=_FORM.read_text(encoding="utf-8"),
        title=_plain(f"{name} as a sentence encoder" if name else "Sentence encoder"),
        model=model,
        dim=model.get_embedding_dimension(),
        dense_dim=None if dense is None else dense.get_embedding_dimension(),
        weight=WEIGHT,
        may_have_graph=hybrid is not None and may_have_graph(hybrid),
        config=None if transformer is None else transformer.config,
        has_head=any(isinstance(module, Dense) for module in model),
        normalizes=isinstance(model[-1], Normalize) or dense is not None,
        limit=limit if limit < 10**6 else None,
        layout=layout,
        location=json.dumps(at.replace("`", "'")),
        base_name=_plain(name) if name else None,
        pooler=str(pooler),
        pooling=pooling,
        module_file=Path(hybrid_module.__file__).name,
        states=_states(str(pooler)),
        similarity=_SIMILARITIES.get(
            str(model.similarity_fn_name), f"{model.similarity_fn_name} distance"
        ),
        prompts=", ".join(
            f"`{_plain(json.dumps(p, ensure_ascii=False))}` ({_plain(name)})" for name, p in prompts
        ),
        recipe=_recipe(record, settings, data) if settings else None,
        results=_results(record),
        chosen=_plain(record.step_chosen_by or ""),
        eval_variant=_plain(variants.get("eval_set") or ""),
        similarities=plain_table(HEADER, rows)
        if (rows := random_pairs_rows(record.random_pairs))
        else None,
        base_license=_plain(base.license) if base.license else None,
        data_license=data_license,
        credits=credits,
        citation=CITATION if DYSTRESS in credits else None,
    )
    write_text(folder / CARD, re.sub(r"\n{3,}", "\n\n", str(text)).rstrip() + "\n")


def read_card(file: Path) -> str:
    """Return the text of a card without a byte order mark and with Unix ends of lines."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except ValueError as error:
        raise UserError(f"cannot read {file}: {reason_of(error)}") from error


def describe_base(name_or_path: str) -> dict[str, Any]:
    """An encoder's name, not its path; whether the hub has it under that name; and the licence that
    its card states.
    """
    folder = Path(name_or_path)
    local = folder.is_dir()
    try:
        file = (
            folder / CARD
            if local
            else hf_hub_download(name_or_path, CARD, local_files_only=not hub_reachable())
        )
        stated = ModelCard(read_card(Path(file))).data.get("license")
    except Exception:  # no card, no network, or a card that is not YAML
        stated = None
    name = folder.resolve().name if local else name_or_path
    return {
        "name": name,
        "on_hub": not local,
        "license": stated if isinstance(stated, str) and stated else None,
    }


def _plain(value: Any) -> str:
    """A value on one line, without the characters that end a cell of a table or a code span."""
    text = one_line(" ".join(str(value).replace("`", "'").split()))
    return text.replace("|", "\\|").replace("<", "&lt;")


def plain_table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """A table in Markdown, of cells that cannot break it."""
    lines = [
        head,
        tuple("---" for _ in head),
        *(tuple(_plain(cell) for cell in row) for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _metadata(
    base: BaseModel, layout: str, is_published: bool, credits: list[str]
) -> ModelCardData:
    """The head of the card, which the hub reads."""
    library = {"native": "sentence-transformers", "hf": "transformers"}.get(layout)
    return ModelCardData(
        license=base.license or "unknown",
        pipeline_tag="sentence-similarity" if layout == "native" else "feature-extraction",
        tags=[
            *{"native": ["sentence-transformers"], "onnx": ["onnx"]}.get(layout, []),
            "sentence-similarity", "feature-extraction", "dystress-text",
            *["dystress"] * (DYSTRESS in credits), *["simcse"] * (SIMCSE in credits),
        ],
        library_name=library,
        base_model=base.name if base.on_hub else None,
        datasets=["princeton-nlp/datasets-for-simcse"] if is_published else None,
    )  # fmt: skip


def _data(settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """The training text and its licence in words."""
    if "train_file" not in settings:
        return None, "the user's own; not recorded"
    file = settings["train_file"]
    if file is None or Path(file).name == WIKI1M:
        return (
            f"Wiki1M ({WIKI1M}), sentences of English Wikipedia",
            "CC BY-SA 3.0 (text of Wikipedia)",
        )
    if file == "python-documentation":
        return "sentences of Python's documentation", "PSF-2.0 (Python's documentation)"
    return f"{Path(file).name}, the user's own", "the user's own; not recorded"


def _states(pooler_type: str) -> str | None:
    """Code for the layers that a pooler averages before the tokens."""
    # the last layer by its own name: hidden_states[-1] of transformers 4 lacks the last norm of
    # ModernBERT
    states = {-1: "output.last_hidden_state"}
    layers = [
        states.get(layer, f"output.hidden_states[{layer}]")
        for layer in AVERAGED.get(pooler_type, ())
    ]
    return f"({' + '.join(layers)}) / {len(layers)}" if len(layers) > 1 else "".join(layers) or None


def _recipe(record: RunRecord, settings: Mapping[str, Any], data: str | None) -> str:
    views = None if settings.get("supervised") else settings.get("views")
    rows = {
        "base model": record.base_model.name,
        "beside": record.beside and record.beside.name,
        "data": data,
        "sentences": record.corpus.get("sentences"),
        "sample": "a document between blank lines"
        if settings.get("sample") == "document"
        else None,
        "SHA-256 of the data": record.corpus.get("sha256"),
        "loss": record.loss or None,
        "as learned": _listed(record.learned_temperature),
        "pooling": settings.get("pooler_type"),
        "dense + tanh while training": "yes" if record.head else "no",
        "masked-language-model loss": f"weight {settings['mlm_weight']}"
        if settings.get("do_mlm")
        else None,
        "dropout": settings.get("dropout")
        if settings.get("dropout") is not None
        else "the base model's",
        "batch": settings.get("train_batch_size"),
        "views": {
            "crop": "two crops of a sample",
            "dropout": "a sample twice, with other dropout",
        }.get(views or ""),
        **{
            name.replace("_", " "): v
            for name, v in settings.items()
            if name.startswith("crop_") and views == "crop"
        },
        **{name.replace("_", " "): settings.get(name) for name in _SETTINGS},
        "parameters": _listed(record.parameters),
        "steps": record.steps,
        "step of this model": record.best_step,
        "device": record.device,
        "processes": record.processes,
        "training time": f"{record.train_seconds} s" if record.train_seconds else None,
        "versions": _listed(record.versions),
    }
    return plain_table(
        ("", ""), [row for row in rows.items() if row[1] is not None and row[1] is not False]
    )


def _listed(values: Mapping[str, Any]) -> str | None:
    """Names and values in a line; None where there are none."""
    return ", ".join(f"{name} {value}" for name, value in values.items()) or None


def _results(record: RunRecord) -> str | None:
    """The figures of the model, and of the encoder before training with the best pooling and with
    the model's.
    """
    before = record.untrained_best_and_own
    head = ("", *(f"untrained, {name}" for name in before), f"this model, {record.pooler}")
    columns = [*before.values(), record.trained]
    rows = [(name, *(_number(name, of.get(name)) for of in columns)) for name in record.trained]
    return plain_table(head, rows) if rows else None


def _number(name: str, value: float | None) -> str:
    return (
        "-"
        if value is None
        else format(value, ".4f" if name.endswith(("alignment", "uniformity")) else ".2f")
    )
