"""The options of a text run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from dystress_text.cli.options import check_options, option
from dystress_text.cli.presets import Program, StartSettings
from dystress_text.errors import ParameterError
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.finetuning.presets import PRESETS
from dystress_text.training.settings import TrainingSettings

if TYPE_CHECKING:
    from dystress_text.losses.objectives import ContrastiveLoss

LEXICAL = "lexical"  # in place of a dense model's name: a hybrid without one


@dataclass(frozen=True)
class TextSettings:
    """Options of the model and the data."""

    title: ClassVar[str] = "encoder and data"

    model_name_or_path: str = option(
        "bert-base-uncased",
        "Folder or hub name of an encoder, a SimCSE checkpoint, or a sentence-transformers model, "
        "which keeps its pooling, head, normalisation and length limit; static for a new table of "
        "word vectors; bert-mini-wiki for the package's small encoder.",
    )
    dim: int = option(512, "static: dimensions of a word vector.", interval="[1, 65536]")
    vocabulary: str = option(
        "embedded",
        "static: the package's English word pieces, or pieces learned from text in any language.",
        choices=["embedded", "text"],
    )
    hybrid: str | None = option(
        None,
        "static: folder or hub name of a sentence-transformers model. The saved model combines its "
        "embeddings, which stay fixed, with word counts and the static embedding; lexical leaves "
        "such a model out. A new table takes its vocabulary unless --vocabulary is given.",
    )
    distill: str | None = option(
        None,
        "static: like --hybrid, but word vectors that are fitted to the model's embeddings of the "
        "training text replace the model, so that search does not need it.",
    )
    pooler_type: str = option(
        "cls",
        "cls, cls_before_pooler, avg, avg_top2, avg_first_last, or last (the last token, for "
        "decoders); a sentence-transformers model keeps its own.",
    )
    dropout: float | None = option(
        None, "All dropout rates of the encoder; default its own.", interval="[0, 1)"
    )
    mlp_head: bool | None = option(
        None, "Train a head, dense + tanh; by default, as in SimCSE, only with cls pooling."
    )
    mlp_only_train: bool | None = option(
        None,
        "Use the head in training only; no saves it with the model. Default as in SimCSE: no with "
        "--supervised and cls, else yes. The head of a loaded model is always kept.",
        nargs="?",
        const=True,
    )
    train_file: list[str] | None = option(
        None,
        "Sentences, one per line (.txt), a table (.csv, .tsv, .jsonl, .parquet), or a data set of "
        "the hub by name; .gz, .xz or .bz2 may follow. Several files, or a quoted pattern such as "
        "'tickets-*.csv', are concatenated. Default Wiki1M.",
    )
    text_columns: list[str] | None = option(
        None,
        "Columns of a table, joined by a space; default its only one, or text or sentence. With "
        "--views crop two columns are title and body; default title and text. With "
        "--supervised: anchor, positive, negatives; default the columns of these names, else all.",
    )
    views: str = option(
        "dropout",
        "The two views of a sample: two dropout masks, or two random crops, for which a sample may "
        "be a paragraph. With --supervised the texts of a row are its views.",
        choices=["dropout", "crop"],
    )
    crop_min: float = option(0.2, "crop: least share of a sample in a crop.", interval="(0, 1]")
    crop_max: float = option(
        0.6, "crop: greatest share; shares are uniform between the two.", interval="(0, 1]"
    )
    held_out: int = option(
        500,
        "supervised, with --eval_set none: hold out a tenth of the rows, at least 25 and at most "
        "this many, to measure how anchors find their positives (docs/evaluate.md).",
        interval="[0, inf)",
    )
    supervised: bool = option(
        False, "A row of the table is an anchor, its positive, and any number of hard negatives."
    )
    drop_duplicates: bool = option(
        False,
        "Drop samples that have the tokens of an earlier one. With --supervised, rows with the "
        "same anchor or the same positive are then no negatives of each other.",
    )
    do_mlm: bool = option(
        False, "Add a masked-language-model loss on the same sentences and encoder."
    )
    mlm_weight: float = option(
        0.1, "do_mlm: weight of the masked-token loss.", interval="[0, inf)", needs="do_mlm"
    )
    mlm_probability: float = option(
        0.15, "do_mlm: share of masked tokens.", interval="(0, 1)", needs="do_mlm"
    )
    max_train_samples: int | None = option(
        None, "Use only the first N sentences or rows.", interval="[2, inf)"
    )
    max_seq_length: int = option(
        32,
        "Truncate training sentences to this many tokens; evaluation uses the encoder's limit.",
        interval="[3, inf)",
    )
    no_samples: bool = option(
        False, "Leave samples of the text out of the run's page and run.json (docs/security.md)."
    )
    data_dir: str | None = option(
        None, "Folder of prepared data; default that of dystress prepare."
    )
    push_to_hub: str | None = option(
        None, "Upload the model at the end to OWNER/NAME on the hub, which is created first."
    )

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("crop_min", "crop_max"):
            if self.views != "crop" and getattr(self, name) != getattr(TextSettings, name):
                raise ParameterError(name, "has no effect without `views` crop")
        if not self.supervised and self.held_out not in (0, TextSettings.held_out):
            raise ParameterError("held_out", "has no effect without `supervised`")
        if self.hybrid is not None and self.distill is not None:
            raise ParameterError("distill", "takes the place of `hybrid`; give one of the two")
        if self.crop_min > self.crop_max:
            reason = f"must not be above `crop_max`, got {self.crop_min} and {self.crop_max}"
            raise ParameterError("crop_min", reason)

    @property
    def is_hybrid(self) -> bool:
        """Whether the model is a hybrid of a static model and other parts."""
        return self.hybrid is not None or self.distill is not None

    @property
    def dense_model(self) -> str | None:
        """The dense model of a hybrid, or the model to distil."""
        return self.distill if self.hybrid in (None, LEXICAL) else self.hybrid

    @property
    def cropped(self) -> bool:
        """Whether the views of a sample are two crops, rather than the texts of its row."""
        return self.views == "crop" and not self.supervised


PROGRAM = Program(
    (StartSettings, TextSettings, EvaluationSettings, TrainingSettings), PRESETS, default="paper"
)


@dataclass(frozen=True)
class FineTuningSettings:
    """All settings of a run.

    Attributes:
        given: names of the options that the user gave; all others have defaults of the preset.
    """

    text: TextSettings
    evaluation: EvaluationSettings
    training: TrainingSettings
    loss: ContrastiveLoss
    preset: str = "paper"
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> FineTuningSettings:
        """Return the settings of the preset ``given["preset"]``, changed by the given options."""
        (text, evaluation, training), loss, preset = PROGRAM.settings(given)
        from dystress_text.losses.objectives import ContrastiveLoss

        if not isinstance(loss, ContrastiveLoss) or not loss.negatives_from_batch:
            reason = f"{loss} is for images; text takes its negatives from the batch"
            raise ParameterError("loss", reason)
        if "views" in given and text.views == "crop" and text.supervised:
            raise ParameterError("views", "with `supervised` the sentences of a row are the views")
        return cls(text, evaluation, training, loss, preset, frozenset(given))

    def options(self) -> dict[str, Any]:
        """Return all options by name as in ``run.json``, where a single file is a string."""
        options = vars(self.text) | vars(self.evaluation) | vars(self.training)
        files = self.text.train_file
        if files is not None and len(files) == 1:
            options["train_file"] = files[0]
        options["loss"] = str(self.loss)
        return {"preset": self.preset, **options, "eval_set": " ".join(self.evaluation.eval_set)}

    def asked(self) -> dict[str, Any]:
        """Return the options by which a finished run with these settings is recognised.

        Left out are options that a run derives from encoder, text and evaluation.
        """
        derived = {"pooler_type", "train_batch_size", "learning_rate"} - self.given
        derived.add("metric_for_best_model")
        return {name: value for name, value in self.options().items() if name not in derived}
