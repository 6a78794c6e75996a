"""The options of a text run, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from dystress_text.cli.options import check_options, default_of, option
from dystress_text.errors import ParameterError
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.training.settings import EngineSettings, LossSettings


@dataclass(frozen=True)
class TextSettings:
    """Encoder and data."""

    model_name_or_path: str = option(
        "bert-base-uncased",
        "Folder or hub name of an encoder, of a SimCSE checkpoint, or of a sentence-transformers model, "
        "whose pooling, head, normalisation and length limit are kept.",
    )
    pooler_type: str = option(
        "cls",
        "cls, cls_before_pooler, avg, avg_top2, avg_first_last, or last (token: for decoders); a "
        "sentence-transformers model keeps its own.",
    )
    dropout: float | None = option(None, "Every dropout rate of the encoder; default its own.", interval="[0, 1)")
    mlp_head: bool | None = option(None, "Train a head, dense + tanh; default as in SimCSE: with cls only.")
    mlp_only_train: bool | None = option(
        None,
        "Drop the head after training; no keeps it in the model. Default as in SimCSE: no with "
        "--supervised and cls, else yes; a head that the loaded model has is kept.",
        nargs="?",
        const=True,
    )
    mlp_init: str | None = option(
        None,
        "First weights of the head: new (random), or pooler (the encoder's own pooler; in SimCSE's published "
        "models it is their MLP). Default: the head or MLP of the checkpoint if it has one, else new.",
        choices=["new", "pooler"],
    )
    lora_rank: int | None = option(None, "Train only LoRA adapters of this rank, and the head.", interval="[1, inf)")
    lora_alpha: float | None = option(
        None, "lora: adapters are scaled by alpha / rank; default 2 x rank.", interval="(0, inf)", needs="lora_rank"
    )
    lora_dropout: float | None = option(None, "lora: their dropout; default 0.", interval="[0, 1)", needs="lora_rank")
    lora_target_modules: list[str] | None = option(
        None, "lora: names of linear layers; default peft's choice, for BERT query and value.", needs="lora_rank"
    )
    merge_lora: bool | None = option(
        None,
        "lora: save the merged model alone (default); no: the adapter's files too.",
        needs="lora_rank",
    )
    train_file: str | None = option(
        None,
        "Sentences, one per line (.txt, .gz, .xz, .bz2), a table (.csv, .tsv, .jsonl, .parquet), or the name "
        "of a data set on the hub; default Wiki1M.",
    )
    text_column: str | None = option(None, "Column of a table; default its only one, or text, sentence or sent0.")
    tsv_quoting: bool | None = option(
        None, "Quotation marks in .tsv files stand around cells, as pandas writes them; default no, as in GLUE's files."
    )
    sample: str = option(
        "line", "A sample of a text file is a line, or a document between blank lines.", choices=["line", "document"]
    )
    views: str = option(
        "dropout",
        "The two views of a sample: the sample twice, with other dropout, or two crops of it, drawn anew each time. "
        "Crops need no dropout, and a sample may be a paragraph or a document.",
        choices=["dropout", "crop"],
    )
    crop_min: float = option(0.2, "crop: least share of the sample's words in a crop.", interval="(0, 1]")
    crop_max: float = option(0.6, "crop: greatest share; it is drawn evenly between the two.", interval="(0, 1]")
    crop_min_words: int = option(4, "crop: least words of a crop.", interval="[1, inf)")
    crop_sentences: bool = option(False, "crop: cut at the ends of sentences alone, not between any words.")
    supervised: bool = option(False, "A row of the table is an anchor, its positive, and any number of hard negatives.")
    text_columns: list[str] | None = option(None, "supervised: columns in that order; default all.", needs="supervised")
    hard_negative_weight: float = option(
        0.0, "Added to the logits of a row's own hard negatives, after 1 / tau.", interval="(-1e9, 1e9)"
    )
    bidirectional: bool = option(False, "infonce: the mean of both directions, anchor to positive and back.")
    drop_duplicates: bool = option(False, "Train on the first alone of samples with the same tokens; says how many.")
    do_mlm: bool = option(False, "Add a masked-language-model loss on the same sentences and encoder.")
    mlm_weight: float = option(0.1, "do_mlm: weight of that loss.", interval="[0, inf)", needs="do_mlm")
    mlm_probability: float = option(0.15, "do_mlm: share of masked tokens.", interval="(0, 1)", needs="do_mlm")
    max_train_samples: int | None = option(None, "Use only the first sentences or rows, so many.", interval="[2, inf)")
    max_seq_length: int = option(
        32,
        "Most tokens of a training sentence or view; evaluation uses the encoder's limit.",
        interval="[3, inf)",
    )
    packing: bool = option(
        True, "Compute nothing for padding; no takes transformers' own forward pass: slower, with the same result."
    )
    data_dir: str | None = option(None, "Folder of prepared data; default: where dystress prepare puts them.")
    push_to_hub: str | None = option(None, "Upload the model at the end to OWNER/NAME of the hub, which is made first.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.text_column is not None and self.supervised:
            raise ParameterError("text_column", "with --supervised use --text_columns, which takes several")
        if self.views == "crop" and self.supervised:
            raise ParameterError("views", "with --supervised the sentences of a row are the views")
        for entry in fields(self):
            given = getattr(self, entry.name) != default_of(entry)
            if entry.name.startswith("crop_") and given and self.views != "crop":
                raise ParameterError(entry.name, "has no effect without --views crop")
        if self.crop_min > self.crop_max:
            raise ParameterError("crop_min", f"must not be above --crop_max, got {self.crop_min} and {self.crop_max}")


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run; ``given`` are the options that the command line or its file names."""

    text: TextSettings
    evaluation: EvaluationSettings
    loss: LossSettings
    engine: EngineSettings
    preset: str = "paper"
    given: frozenset[str] = field(default=frozenset(), compare=False)

    def options(self) -> dict[str, Any]:
        """Every option by its name."""
        evaluation = {**vars(self.evaluation), "eval_set": " ".join(self.evaluation.eval_set)}
        return {"preset": self.preset, **vars(self.text), **evaluation, **vars(self.loss), **vars(self.engine)}

    def asked(self) -> dict[str, Any]:
        """The options that a finished run must have had to be this one; encoder and evaluation decide on the others."""
        decided = {"metric_for_best_model", *({"pooler_type"} - self.given)}
        return {name: value for name, value in self.options().items() if name not in decided}
