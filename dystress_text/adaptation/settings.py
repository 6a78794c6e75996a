"""What a user of an adaptation decides, and the recipe of its training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystress_text.cli.access_tokens import holds_token
from dystress_text.cli.options import check_options, option
from dystress_text.errors import UserError
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.simcse.run import model_path
from dystress_text.simcse.settings import RunSettings, TextSettings
from dystress_text.training.settings import EngineSettings, LossSettings


@dataclass(frozen=True)
class Recipe:
    """How an adaptation trains and chooses; docs/adapt.md says how its numbers were set, and what they held on.

    Attributes:
        guide_quantile: pairs that the base finds more alike than this share of a batch's are no negatives; None for
            no guide.
        teacher_weight: of the base's ranking of each sentence's neighbours in the batch; None for no teacher.
        alphas: shares of the trained weights in the model, of which one is chosen; in (0, 1].
        evaluations: measurements while training, the last step's among them.
        patience: measurements in a row without a better one after which training stops.
        fewest_steps: without --max_steps one pass over the sentences, but at least these.
        most_steps: and at most these.
    """

    guide_quantile: float | None = 0.95
    teacher_weight: float | None = 1.0
    alphas: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    evaluations: int = 5
    patience: int = 3
    fewest_steps: int = 100
    most_steps: int = 1000

    def steps(self, sentences: int, batch: int) -> int:
        """The number of steps for so many training sentences."""
        return min(max(sentences // batch, self.fewest_steps), self.most_steps)


@dataclass(frozen=True)
class AdaptSettings:
    """The options of an adaptation."""

    file: str = option(
        "", "Your sentences, one a line (.txt, .gz, .xz, .bz2), or a table (.csv, .tsv, .jsonl, .parquet). Blank lines "
        "between documents help the measures."
    )  # fmt: skip
    base: str = option(
        "", "Folder or hub name of the model to adapt: a sentence-transformers model, or any encoder of transformers."
    )
    output_dir: str = option("out", "Folder for the model and the verdict.")
    overwrite_output_dir: bool = option(False, "Replace the run that output_dir holds.")
    resume_from_checkpoint: str = option(
        "no", "Go on with the run in output_dir that a signal stopped; auto also begins one.", nargs="?", const="yes",
        metavar="{yes,no,auto}",
    )  # fmt: skip
    keep_anyway: bool = option(False, "Write the adapted model even where it did not win; else that is the base.")
    text_column: str | None = option(None, "Column of a table; default its only one, or text, sentence or sent0.")
    pooler_type: str | None = option(
        None, "For a base without a pooling of its own: cls, cls_before_pooler, avg, avg_top2, avg_first_last; avg."
    )
    dropout: float | None = option(None, "Every dropout rate of the base while it trains.", interval="[0, 1)")
    max_seq_length: int = option(64, "Most tokens of a training sentence.", interval="[3, inf)")
    train_batch_size: int = option(64, "Sentences a step.", interval="[2, inf)")
    max_steps: int | None = option(
        None, "Optimiser steps; default one pass over the sentences, but 100 to 1,000 steps.", interval="[1, inf)"
    )
    learning_rate: float = option(2e-5, "Peak learning rate.", interval="(0, inf)")
    seed: int = option(42, "Seed of everything: what is held out, the order, dropout.", interval="[0, 2^32)")

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("file", "base", "output_dir"):
            if not getattr(self, name):
                raise UserError(f"{'FILE' if name == 'file' else f'--{name}'}: a name is needed")
            if holds_token(getattr(self, name)) or "\0" in getattr(self, name):
                raise UserError(f"--{name}: this is no name of a file or model, or looks like an access token")
        self.engine(Path(self.output_dir))

    def text(self) -> TextSettings:
        """Encoder and data of the run, without helpers."""
        return TextSettings(
            model_name_or_path=model_path(self.base), pooler_type=self.pooler_type or "avg", dropout=self.dropout,
            train_file=self.file, text_column=self.text_column, max_seq_length=self.max_seq_length, random_pairs=0,
        )  # fmt: skip

    def engine(self, output: Path, **more: Any) -> EngineSettings:
        """The loop, whose run lies in ``output``."""
        return EngineSettings(
            output_dir=str(output), overwrite_output_dir=self.overwrite_output_dir, seed=self.seed,
            resume_from_checkpoint=self.resume_from_checkpoint, train_batch_size=self.train_batch_size,
            learning_rate=self.learning_rate, **more,
        )  # fmt: skip

    def run(self, recipe: Recipe, output: Path, sentences: int) -> RunSettings:
        """The training run.

        Args:
            recipe: how to train.
            output: its folder.
            sentences: to train on.
        """
        helpers: dict[str, Any] = {}
        if recipe.guide_quantile is not None:
            helpers |= {"guide": "base", "guide_quantile": recipe.guide_quantile}
        if recipe.teacher_weight is not None:
            helpers |= {"teacher": "base", "teacher_weight": recipe.teacher_weight}
        steps = self.max_steps or recipe.steps(sentences, self.train_batch_size)
        resume = "auto" if self.engine(output).resumes else "no"
        engine = {
            **vars(self.engine(output)), "resume_from_checkpoint": resume, "max_steps": steps, "lr_scheduler_type":
            "linear", "warmup_ratio": 0.1, "eval_steps": max(1, -(-steps // recipe.evaluations)),
            "early_stopping_patience": recipe.patience,
        }  # fmt: skip
        given = frozenset({"pooler_type"}) if self.pooler_type else frozenset[str]()
        return RunSettings(
            TextSettings(**vars(self.text()) | helpers), EvaluationSettings(eval_set=["none"]), LossSettings(),
            EngineSettings(**engine), given=given,
        )  # fmt: skip
