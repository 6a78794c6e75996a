"""The model card: what a model is, how it was trained, its results, and how each consumer gets its vectors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from dystress_text.cli.command_line import one_line
from dystress_text.encoders.pooling import AVERAGED
from dystress_text.encoders.saved_model import SavedModel, read_saved
from dystress_text.evaluation.catalogue import STS_SETS
from dystress_text.evaluation.random_pairs import HEADER, random_pairs_rows
from dystress_text.export.card_code import usage
from dystress_text.export.citation import CITATION
from dystress_text.files.hub import hub_reachable
from dystress_text.files.whole import write_text
from dystress_text.simcse.training_text import WIKI1M

CARD = "README.md"
HERE = "path/to/this/folder"
LAYOUTS = ("native", "hf", "onnx")

_FORMATS = {"spearman": ".2f", "alignment": ".4f", "uniformity": ".4f"}
_UNKNOWN = "unknown"


def write_card(
    folder: Path, record: Mapping[str, Any], model: SavedModel | None = None, layout: str = "native", at: str = HERE
) -> None:
    """Write a model folder's card.

    Args:
        folder: where the card goes.
        record: see :func:`model_card`.
        model: see :func:`model_card`; None to read it from the folder.
        layout: see :func:`model_card`.
        at: see :func:`model_card`.

    Raises:
        OSError: it cannot be written.
        UserError: there is no model in the folder.
    """
    write_text(folder / CARD, model_card(record, model or read_saved(folder), layout, at))


def describe_base(name_or_path: str) -> dict[str, Any]:
    """An encoder's name, whether the hub has it under that name, and the licence that its card states (else None).

    Of a folder only the name is given, not the path.
    """
    folder = Path(name_or_path)
    local = folder.is_dir()
    return {
        "name": folder.resolve().name if local else name_or_path,
        "on_hub": not local,
        "license": _stated_license(name_or_path, local),
    }


def _stated_license(name_or_path: str, local: bool) -> str | None:
    from huggingface_hub import ModelCard, hf_hub_download

    try:
        file = os.path.join(name_or_path, CARD) if local else None
        file = file or hf_hub_download(name_or_path, CARD, local_files_only=not hub_reachable())
        stated = ModelCard.load(file).data.to_dict().get("license")
    except Exception:  # no card, no network, or a card that is not YAML
        return None
    return stated if isinstance(stated, str) and stated else None


def model_card(
    record: Mapping[str, Any],
    model: SavedModel,
    layout: str = "native",
    at: str = HERE,
) -> str:
    """The text of a model folder's README.md.

    Args:
        record: the content of ``run.json``; the card leaves out what it does not have, and it may be empty.
        model: its description.
        layout: of the folder's files, one of :data:`LAYOUTS`.
        at: the folder or hub name for the code.
    """
    sections = [
        _front_matter(record, layout),
        f"# {_title(record)}",
        _about(record, model),
        "## How to use",
        *usage(model, layout, at),
        *_recipe(record),
        *_results(record),
        *_further_results(record),
        *_high_similarity(record),
        "## Licences\n\n" + _licences(record),
        "## Citation\n\n```bibtex\n" + CITATION + "\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _section(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = record.get(name)
    return section if isinstance(section, Mapping) else {}


def _plain(value: Any) -> str:
    """A value on one line, without the characters that end a cell of a table or a code span."""
    text = one_line(" ".join(str(value).replace("`", "'").split()))
    return text.replace("|", "\\|").replace("<", "&lt;")


def _title(record: Mapping[str, Any]) -> str:
    name = _section(record, "base_model").get("name")
    return _plain(f"{name} as a sentence encoder" if name else "Sentence encoder")


def _about(record: Mapping[str, Any], model: SavedModel) -> str:
    limit = f" of up to {model.max_seq_length} tokens" if model.max_seq_length else ""
    base = _section(record, "base_model").get("name")
    return (
        f"Maps sentences{limit} to vectors of {model.dimension} numbers, to be compared by cosine similarity. "
        f"A {_plain(model.transformer)} encoder"
        f"{f' with {model.layers} layers' if model.layers else ''}"
        f"{f', {_plain(base)},' if base else ''} {_made(record)}. "
        f"Pooling: {_pooling_in_words(model)}. "
        f"The vectors {'have length 1' if model.normalize else 'are not normalised'}.{_adapters_in_words(record)}"
    )


def _made(record: Mapping[str, Any]) -> str:
    program = "dystress-text, an implementation of [this paper](https://arxiv.org/abs/2308.01140)"
    if _section(record, "adaptation").get("shipped") == "base":
        return f"as it was: {program}, trained it on other sentences, and that did not make it better"
    return f"fine-tuned by contrastive learning with {program}"


def _adapters_in_words(record: Mapping[str, Any]) -> str:
    settings, parameters = _section(record, "settings"), _section(record, "parameters")
    rank = settings.get("lora_rank")
    if rank is None:
        return ""
    share = ""
    if all(isinstance(parameters.get(name), int) for name in ("trained", "all")):
        share = f", {parameters['trained']:,} of {parameters['all']:,} parameters,"
    files = (
        "; the adapters' own files are in `adapter/` of the run's folder" if settings.get("merge_lora") is False else ""
    )
    return f" LoRA adapters of rank {_plain(rank)}{share} were trained and are merged into the weights{files}."


def _pooling_in_words(model: SavedModel) -> str:
    return _tokens_in_words(model) + (", then a dense layer with tanh" if model.dense is not None else "")


def _tokens_in_words(model: SavedModel) -> str:
    if model.pooler_type not in AVERAGED:
        return "the first token of the last layer"
    layers = {
        "avg": "the last layer",
        "avg_top2": "the mean of the last two layers",
        "avg_first_last": "the mean of the first and the last layer",
    }
    return f"the mean over the tokens of {layers[model.pooler_type]}"


def _front_matter(record: Mapping[str, Any], layout: str) -> str:
    settings, base = _section(record, "settings"), _section(record, "base_model")
    sentence_transformers = layout == "native"
    content: dict[str, Any] = {
        "license": str(base.get("license") or _UNKNOWN),
        "pipeline_tag": "sentence-similarity" if sentence_transformers else "feature-extraction",
        "tags": ["sentence-similarity", "feature-extraction", "dystress", "simcse"],
    }
    if sentence_transformers:
        content["library_name"] = "sentence-transformers"
        content["tags"].insert(0, "sentence-transformers")
    elif layout == "hf":
        content["library_name"] = "transformers"
    else:
        content["tags"].insert(0, "onnx")
    if base.get("on_hub"):
        content["base_model"] = str(base["name"])
    if settings.get("train_file") is None and "train_file" in settings and _variant(record, "train_file") is None:
        content["datasets"] = ["princeton-nlp/datasets-for-simcse"]
    return "---\n" + yaml.safe_dump(content, sort_keys=False, allow_unicode=True) + "---"


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(_plain(cell) for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _recipe(record: Mapping[str, Any]) -> Iterable[str]:
    settings, corpus = _section(record, "settings"), _section(record, "corpus")
    if not settings:
        return
    batch = settings.get("train_batch_size")
    if settings.get("per_device_train_batch_size") is not None:
        batch = f"{settings['per_device_train_batch_size']} a process"
    rows: list[tuple[str, Any]] = [
        ("base model", _section(record, "base_model").get("name")),
        ("data", _data(record)),
        ("sentences", corpus.get("sentences")),
        ("SHA-256 of the data", corpus.get("sha256")),
        ("objective", record.get("objective")),
        ("temperature", record.get("temperature")),
        ("temperature as learned", _listed(_section(record, "learned_temperature"))),
        ("temperature in the gradient", {True: "no", False: "yes"}.get(settings.get("detach_temperature", ""))),
        ("pooling", settings.get("pooler_type")),
        ("dense + tanh while training", _head(record)),
        ("masked-language-model loss", f"weight {settings.get('mlm_weight')}" if settings.get("do_mlm") else None),
        *((name.replace("_", " "), settings.get(name) or None) for name in (
            "supervised", "bidirectional", "hard_negative_weight",
        )),
        ("LoRA", _lora(settings)),
        *((name, _helper(settings, name)) for name in ("guide", "teacher")),
        ("share of the trained weights", settings.get("interpolate")),
        ("loss at the first dimensions", settings.get("matryoshka_dims")),
        ("dropout", settings.get("dropout") if settings.get("dropout") is not None else "the base model's"),
        ("tokens a training sentence", settings.get("max_seq_length")),
        ("batch", batch),
        ("steps", record.get("steps")),
        ("step of this model", record.get("best_step")),
        *((name.replace("_", " "), settings.get(name)) for name in (
            "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type", "warmup_ratio", "weight_decay",
            "max_grad_norm", "seed", "preset",
        )),
        ("device", record.get("device")),
        ("processes", record.get("processes")),
        ("training time", f"{record['train_seconds']} s" if "train_seconds" in record else None),
        ("versions", _listed(_section(record, "versions"))),
    ]  # fmt: skip
    title = "Recipe that was tried" if _section(record, "adaptation").get("shipped") == "base" else "Recipe"
    yield f"## {title}\n\n" + _table(("", ""), (row for row in rows if row[1] is not None))


def _lora(settings: Mapping[str, Any]) -> str | None:
    """Options of LoRA in words; None where it was off."""
    names = ("lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules")
    return _listed({name.removeprefix("lora_"): settings.get(name) for name in names})


def _helper(settings: Mapping[str, Any], name: str) -> str | None:
    """The guide or the teacher with its options; of a folder only the name. None where there was none."""
    if not settings.get(name):
        return None
    options = {
        option.removeprefix(f"{name}_"): settings[option] for option in settings if option.startswith(f"{name}_")
    }
    return ", ".join(filter(None, (Path(str(settings[name])).name, _listed(options))))


def _head(record: Mapping[str, Any]) -> str:
    """Whether there was a head; older records have the option alone."""
    if "head" in record:
        return "yes" if record["head"] else "no"
    return {True: "yes", False: "no"}.get(_section(record, "settings").get("mlp_head", ""), "with cls only")


def _listed(values: Mapping[str, Any]) -> str | None:
    """Names and values in a line; None where there are none."""
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None) or None


def _variant(record: Mapping[str, Any], option: str) -> Any:
    return _section(record, "data_variants").get(option)


def _is_wikipedia(record: Mapping[str, Any]) -> bool:
    train_file = _section(record, "settings").get("train_file", "")
    return train_file is None or Path(str(train_file)).name == WIKI1M


def _data(record: Mapping[str, Any]) -> str | None:
    settings = _section(record, "settings")
    if "train_file" not in settings:
        return None
    train_file = settings["train_file"]
    if _is_wikipedia(record):
        name = f"Wiki1M ({WIKI1M}), sentences of English Wikipedia"
    elif train_file == "python-documentation":
        name = "sentences of Python's documentation"
    else:
        name = f"{Path(str(train_file)).name}, the user's own"
    variant = _variant(record, "train_file")
    return f"{name}; not the published data but a variant: {variant}" if variant is not None else name


def _licences(record: Mapping[str, Any]) -> str:
    stated = _section(record, "base_model").get("license")
    base = f"{_plain(stated)}, as its card states" if stated else f"{_UNKNOWN}: its card states none that could be read"
    if _is_wikipedia(record):
        data = "CC BY-SA 3.0 (text of Wikipedia)"
    elif _section(record, "settings").get("train_file") == "python-documentation":
        data = "PSF-2.0 (Python's documentation)"
    else:
        data = "the user's own; not recorded"
    return (
        f"- Base model: {base}.\n- Training data: {data}.\n\n"
        "The `license` in the head of this card repeats the base model's; who publishes the model is to check it."
    )


def _results(record: Mapping[str, Any]) -> Iterable[str]:
    trained, untrained = _section(record, "trained"), _section(record, "untrained")
    slug = _first_set(trained)
    if slug is None:
        return
    settings = _section(record, "settings")
    pooler = str(settings.get("pooler_type"))
    rows = []
    best = next(iter(untrained), pooler)
    for name in dict.fromkeys(name for name in (best, pooler) if name in untrained):
        title = "untrained, best pooling" if name == best else "untrained"
        rows.append((title, name, *_figures(_section(untrained, name), slug)))
    rows.append(("this model", pooler, *_figures(trained, slug)))
    name = str(settings.get("eval_set")).partition(" ")[0]
    eval_set = STS_SETS[name].title if name in STS_SETS else slug
    chosen_by = str(settings.get("metric_for_best_model") or f"{slug}_spearman")
    chose = (
        "which also chose the step" if chosen_by == f"{slug}_spearman" else f"the step chosen by {_plain(chosen_by)}"
    )
    variant = _variant(record, "eval_set")
    note = f" The set is not the published one but a variant: {_plain(variant)}." if variant is not None else ""
    yield (
        f"## Results\n\nOn {_plain(eval_set)}, {chose}: Spearman's correlation x 100, alignment and "
        f"uniformity (lower is better for both).{note}\n\n"
    ) + _table(("", "pooling", "Spearman", "alignment", "uniformity"), rows)


def _further_results(record: Mapping[str, Any]) -> Iterable[str]:
    """The figures of all evaluators except the first set of scored pairs."""
    trained = _section(record, "trained")
    slug = _first_set(trained)
    shown = {f"{slug}_{kind}" for kind in _FORMATS}
    figures = [(n, format(value, ".2f")) for n, value in trained.items() if n not in shown and _is_number(value)]
    if figures:
        yield "## Further results\n\nMeasured while training.\n\n" + _table(("metric", "this model"), figures)


def _high_similarity(record: Mapping[str, Any]) -> Iterable[str]:
    rows = random_pairs_rows(record)
    if rows:
        yield (
            "## Which similarity is high\n\nRandom pairs of sentences of the training text reach these similarities; "
            "other kinds of text have others.\n\n"
        ) + _table(HEADER, rows)


def _first_set(trained: Mapping[str, Any]) -> str | None:
    return next((key.removesuffix("_spearman") for key in trained if key.endswith("_spearman")), None)


def _figures(values: Mapping[str, Any], slug: str) -> tuple[str, ...]:
    found = ((values.get(f"{slug}_{name}"), form) for name, form in _FORMATS.items())
    return tuple(format(value, form) if _is_number(value) else "-" for value, form in found)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
