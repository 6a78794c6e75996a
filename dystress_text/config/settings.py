"""The options of a text run, as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from dystress_text.cli.options import check_options, option
from dystress_text.config.presets import PRESETS
from dystress_text.errors import ParameterError
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.training.presets import Program
from dystress_text.training.settings import TrainingSettings

if TYPE_CHECKING:
    from dystress_text.losses.objectives import ContrastiveLoss


@dataclass(frozen=True)
class TextSettings:
    """Encoder and data."""

    title: ClassVar[str] = "encoder and data"

    model_name_or_path: str = option(
        "bert-base-uncased",
        "Folder or hub name of an encoder, of a SimCSE checkpoint, or of a sentence-transformers "
        "model, whose pooling, head, normalisation and length limit are kept; static for a new "
        "table of word vectors; bert-mini-wiki for the small encoder that comes with the package.",
    )
    dim: int = option(512, "static: numbers of a word's vector.", interval="[1, 65536]")
    vocabulary: str = option(
        "embedded",
        "static: English word pieces that come with the package, or pieces learned from the text, "
        "in any language.",
        choices=["embedded", "text"],
    )
    hybrid: str | None = option(
        None,
        "static: sentence-transformers model, folder or hub name, that the words are for: the "
        "saved model's vectors are that model's, whose weights stay as they are, with the words' "
        "behind them. Without a --vocabulary a new table has that model's, so that one ONNX graph "
        "can hold both.",
    )
    pooler_type: str = option(
        "cls",
        "cls, cls_before_pooler, avg, avg_top2, avg_first_last, or last (token: for decoders); a "
        "sentence-transformers model keeps its own.",
    )
    dropout: float | None = option(
        None, "Every dropout rate of the encoder; default its own.", interval="[0, 1)"
    )
    mlp_head: bool | None = option(
        None, "Train a head, dense + tanh; default as in SimCSE: with cls only."
    )
    mlp_only_train: bool | None = option(
        None,
        "Drop the head after training; no keeps it in the model. Default as in SimCSE: no with "
        "--supervised and cls, else yes; a head that the loaded model has is kept.",
        nargs="?",
        const=True,
    )
    normalize: bool | None = option(
        None,
        "Vectors of the saved model have length 1, as stores expect; default yes, or a loaded "
        "model's own.",
    )
    lora: int | None = option(
        None,
        "Train only LoRA adapters of this rank, and the head; saving merges them.",
        interval="[1, inf)",
    )
    train_file: list[str] | None = option(
        None,
        "Sentences, one per line (.txt), a table (.csv, .tsv, .jsonl, .parquet), or the name of a "
        "data set on the hub; the ending decides, and .gz, .xz or .bz2 may follow. Several of a "
        "kind, or a quoted pattern such as 'tickets-*.csv', are one text. Default Wiki1M.",
    )
    text_columns: list[str] | None = option(
        None,
        "Column of a table, or several, which are joined by a space; default its only one, or text "
        "or sentence. With --supervised anchor first; default anchor, positive and negative by "
        "these names, else all.",
    )
    sample: str = option(
        "line",
        "A sample of a text file is a line, or a document between blank lines.",
        choices=["line", "document"],
    )
    views: str = option(
        "dropout",
        "The two views of a sample: the sample twice, with other dropout, or two crops of it, "
        "drawn anew each time. Crops need no dropout, and a sample may be a paragraph or a "
        "document. With --supervised the texts of a row are its views.",
        choices=["dropout", "crop"],
    )
    crop_min: float = option(
        0.2, "crop: least share of the sample's words in a crop.", interval="(0, 1]"
    )
    crop_max: float = option(
        0.6, "crop: greatest share; it is drawn evenly between the two.", interval="(0, 1]"
    )
    held_out: int = option(
        500,
        "crop or --supervised with --eval_set none: most texts or rows that are not trained on and "
        "tell whether training helped; a tenth, at least 25 (docs/evaluate.md).",
        interval="[0, inf)",
    )
    supervised: bool = option(
        False, "A row of the table is an anchor, its positive, and any number of hard negatives."
    )
    loss: str = option(
        "infonce(shifted_cosine(0.05, 0.07, shift=-0.4))",
        "The loss: an objective of a temperature or of a rule with one (docs/losses.md), such as "
        "infonce(0.05).",
    )
    drop_duplicates: bool = option(
        False, "Train on the first alone of samples with the same tokens; says how many."
    )
    do_mlm: bool = option(
        False, "Add a masked-language-model loss on the same sentences and encoder."
    )
    mlm_weight: float = option(
        0.1, "do_mlm: weight of that loss.", interval="[0, inf)", needs="do_mlm"
    )
    mlm_probability: float = option(
        0.15, "do_mlm: share of masked tokens.", interval="(0, 1)", needs="do_mlm"
    )
    max_train_samples: int | None = option(
        None, "Use only the first sentences or rows, so many.", interval="[2, inf)"
    )
    max_seq_length: int = option(
        32,
        "Most tokens of a training sentence or view; evaluation uses the encoder's limit.",
        interval="[3, inf)",
    )
    data_dir: str | None = option(
        None, "Folder of prepared data; default: where dystress prepare puts them."
    )
    push_to_hub: str | None = option(
        None, "Upload the model at the end to OWNER/NAME of the hub, which is made first."
    )

    def __post_init__(self) -> None:
        check_options(self)
        for entry in fields(self):
            of_crops = entry.name in ("crop_min", "crop_max")
            if of_crops and self.views != "crop" and getattr(self, entry.name) != entry.default:
                raise ParameterError(entry.name, "has no effect without --views crop")
        if self.crop_min > self.crop_max:
            reason = f"must not be above --crop_max, got {self.crop_min} and {self.crop_max}"
            raise ParameterError("crop_min", reason)

    @property
    def cropped(self) -> bool:
        """Whether the views of a sample are two crops; those of a row are its texts."""
        return self.views == "crop" and not self.supervised


PROGRAM = Program((TextSettings, EvaluationSettings, TrainingSettings), PRESETS, default="paper")


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run; ``given`` are the options that a user has named."""

    text: TextSettings
    evaluation: EvaluationSettings
    training: TrainingSettings
    loss: ContrastiveLoss
    preset: str = "paper"
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RunSettings:
        """Return the settings that options make on top of a preset, which may be one of them."""
        (text, evaluation, training), loss, preset = PROGRAM.settings(given)
        from dystress_text.losses.objectives import ContrastiveLoss

        if not isinstance(loss, ContrastiveLoss) or not loss.negatives_from_batch:
            reason = f"{loss} is for images; text takes its negatives from the batch"
            raise ParameterError("loss", reason)
        if "views" in given and text.views == "crop" and text.supervised:
            raise ParameterError("views", "with --supervised the sentences of a row are the views")
        if text.held_out and "held_out" in given:
            sets = " ".join(set(evaluation.eval_set) - {"none"})
            if sets:
                reason = f"has no effect beside --eval_set {sets}, which tells more; leave one out"
                raise ParameterError("held_out", reason)
            if text.views != "crop" and not text.supervised:
                raise ParameterError("held_out", "requires --views crop or --supervised")
        return cls(text, evaluation, training, loss, preset, frozenset(given))

    def options(self) -> dict[str, Any]:
        """Return every option by its name; one file alone is a text, as in earlier records."""
        options = vars(self.text) | vars(self.evaluation) | vars(self.training)
        files = self.text.train_file
        if files is not None and len(files) == 1:
            options["train_file"] = files[0]
        return {"preset": self.preset, **options, "eval_set": " ".join(self.evaluation.eval_set)}

    def asked(self) -> dict[str, Any]:
        """Return the options that a finished run must have had to be this one.

        The others follow from encoder, text and evaluation.
        """
        follow = {"pooler_type", "train_batch_size", "learning_rate"} - self.given
        follow.add("metric_for_best_model")
        return {name: value for name, value in self.options().items() if name not in follow}
