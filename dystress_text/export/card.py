"""Write the model card from its template, ``card.md``, and the record of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize

from dystress_text.cli.command_line import one_line
from dystress_text.cli.text_table import cell
from dystress_text.evaluation.cosines import random_pairs_table
from dystress_text.evaluation.retrieval import FUSION
from dystress_text.export.citation import CITATION, SIMCSE, credits_of
from dystress_text.io.atomic import write_text
from dystress_text.io.hub import HUB_REPOSITORY, model_file
from dystress_text.io.prepared_data import DOCUMENTATION, WIKI1M
from dystress_text.losses.temperature import DYSTRESS
from dystress_text.models.hybrid import describe_parts, hybrid_part
from dystress_text.models.hybrid_module import DOCUMENT
from dystress_text.models.poolers import averages_layers, pooler_of
from dystress_text.models.static import STATIC
from dystress_text.training.run_record import BaseModel, RunRecord

CARD = "README.md"
HERE = "path/to/this/folder"

_FORM = Path(__file__).with_name("card.md")
_LIBRARIES = {"native": "sentence-transformers", "hf": "transformers"}
_OWN_DATA = "the user's own; not recorded"


def write_card(
    folder: Path,
    record: RunRecord,
    model: SentenceTransformer,
    layout: str = "native",
    at: str = HERE,
) -> None:
    """Write the card of a model.

    Args:
        folder: the folder of the model.
        record: the record of its run, or of none: what it lacks is left out.
        model: the loaded model.
        layout: the layout of the folder, ``native``, ``hf`` or ``onnx``.
        at: the folder or hub name in the card's code.
    """
    hybrid = hybrid_part(model)
    base = record.base_model
    reader = model
    prompts = model.prompts
    if hybrid is not None:
        base = record.hybrid or BaseModel()
        reader = hybrid.model
        prompts = {role: (text or "").removeprefix(DOCUMENT) for role, text in prompts.items()}
    pooler = pooler_of(model)
    transformer = model.transformers_model
    data, data_license = _data(record)
    credits = credits_of(record)
    header, *random_pairs = random_pairs_table(record.random_pairs)
    text = ModelCard.from_template(
        _metadata(record, base, layout, credits),
        template_str=_FORM.read_text(encoding="utf-8"),
        dim=model.get_embedding_dimension(),
        parts=None if hybrid is None else describe_parts(hybrid),
        hybrid=hybrid,
        config=None if transformer is None else transformer.config,
        has_head=any(isinstance(module, Dense) for module in model),
        normalizes=isinstance(model[-1], Normalize) or hybrid is not None,
        limit=reader.max_seq_length,
        layout=layout,
        location=json.dumps(at.replace("`", "'")),
        base=base,
        pooler=pooler,
        averages_layers=pooler is None or averages_layers(pooler),
        similarity=model.similarity_fn_name,
        prompts=prompts,
        record=record,
        recipe=record.settings,
        data=data,
        plain=_plain,
        quote=partial(json.dumps, ensure_ascii=False),
        fusion=FUSION,
        results=_results(record),
        similarities=plain_table(header, random_pairs) if random_pairs else None,
        data_license=data_license,
        credits=credits,
        citation=CITATION if DYSTRESS in credits else None,
    )
    write_text(folder / CARD, re.sub(r"\n{3,}", "\n\n", str(text)).rstrip() + "\n")


def describe_base(name_or_path: str) -> BaseModel:
    """Describe the encoder that training started from, by its folder's name or hub name."""
    if name_or_path == STATIC:
        return BaseModel()
    folder = Path(name_or_path)
    is_local = folder.is_dir()
    stated = None
    with suppress(Exception):  # no card, no network, or a card that is not YAML
        stated = ModelCard.load(model_file(name_or_path, CARD) or "").data.get("license")
    return BaseModel(
        name=folder.resolve().name if is_local else name_or_path,
        on_hub=not is_local,
        license=stated if isinstance(stated, str) else None,
    )


def plain_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table whose cells are escaped."""
    lines = [head, ["---"] * len(head)]
    for row in rows:
        lines.append([_plain(value) for value in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(value: Any) -> str:
    """Return a value on one line, escaped for a table cell and a code span."""
    text = one_line(" ".join(str(value).replace("`", "'").split()))
    return text.replace("|", "\\|").replace("<", "&lt;")


def _metadata(
    record: RunRecord, base: BaseModel, layout: str, credits: Sequence[str]
) -> ModelCardData:
    """Return the metadata at the head of the card, which the hub reads."""
    tags = ["sentence-similarity", "feature-extraction", "dystress-text"]
    task = "feature-extraction"
    if layout == "native":
        tags.insert(0, "sentence-transformers")
        task = "sentence-similarity"
    if layout == "onnx":
        tags.insert(0, "onnx")
    if DYSTRESS in credits:
        tags.append("dystress")
    if SIMCSE in credits:
        tags.append("simcse")
    is_wiki1m = record.settings.get("train_file", "") is None
    is_published = is_wiki1m and not record.data_variants.get("train_file")
    return ModelCardData(
        license=base.license or ("unknown" if base.name else None),
        pipeline_tag=task,
        tags=tags,
        library_name=_LIBRARIES.get(layout),
        base_model=base.name if base.on_hub else None,
        datasets=[HUB_REPOSITORY] if is_published else None,
    )


def _data(record: RunRecord) -> tuple[str | None, str]:
    """Describe the training text, if the record has it, and its licence."""
    if "train_file" not in record.settings:
        return None, _OWN_DATA
    files = record.train_files
    names = [Path(file).name for file in files] or [WIKI1M]
    text = f"{', '.join(names)}, the user's own"
    terms = _OWN_DATA
    if names == [WIKI1M]:
        text = f"Wiki1M ({WIKI1M}), sentences of English Wikipedia"
        terms = "CC BY-SA 3.0 (text of Wikipedia)"
    elif files == [DOCUMENTATION]:
        text = "sentences of Python's documentation"
        terms = "PSF-2.0 (Python's documentation)"
    variant = record.data_variants.get("train_file")
    if variant:
        text += f"; not the published data but a variant: {variant}"
    return text, terms


def _results(record: RunRecord) -> str | None:
    """Return a table of metrics by model: before and after training, and the lexical baseline."""
    if not record.trained:
        return None
    models = record.compared
    rows = []
    for metric in record.trained:
        rows.append([metric, *(cell(figures.get(metric)) for figures in models.values())])
    return plain_table(["", *models], rows)
