"""Finished runs of text or images: model, settings and logs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.analysis.outcome import outcome, results
from dystress_text.cli.text_table import lay_out
from dystress_text.training import run_folder
from dystress_text.training.run_record import RunRecord
from dystress_text.training.settings import CONFIGURATION_FREE

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Line = Mapping[str, Any]  # of a log: step, and values by name


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of text or images.

    Attributes:
        folder: contains the model, the logs and the page.
        record: the content of ``run.json``.

    Examples:
        >>> from dystress_text.training.run_record import RunRecord
        >>> record = RunRecord(trained={"sts_b_dev_spearman": 79.1})
        >>> FinishedRun(Path("mine"), record).evaluation
        {'sts_b_dev_spearman': 79.1}
    """

    folder: Path
    record: RunRecord

    def __repr__(self) -> str:
        """Return at most five lines: settings, results and folder."""
        record = self.record
        trained = f"{record.settings.get('preset')}, {record.loss}, {record.steps} steps"
        return "\n".join([trained, *outcome(record)[:3], f"in {self.folder}"])

    def _repr_html_(self) -> str:
        """Return the same with all figures, for notebooks."""
        return f"<pre>{escape(repr(self))}</pre>{lay_out(results(self.record), 'html')}"

    @property
    def evaluation(self) -> dict[str, float]:
        """Metrics of the trained model by name."""
        return dict(self.record.trained)

    @cached_property
    def model(self) -> SentenceTransformer:
        """The trained model of a run on text."""
        from dystress_text.models.loading import load_sentence_transformer  # slow to import

        return load_sentence_transformer(str(self.folder), device=None)

    @property
    def seed(self) -> int:
        return int(self.record.settings["seed"])

    @property
    def configuration(self) -> str:
        """The folder's name without the seed, or the loss if it gave the folder its name."""
        name = re.sub(r"(?<=.)-seed-\d+$", "", self.folder.name)
        return self.record.loss if name == as_folder(self.record.loss) else name

    @property
    def settings(self) -> dict[str, Any]:
        """The options and the training text: runs with equal settings are one configuration."""
        options = {**self.record.settings, "training text": self.record.corpus.get("sha256")}
        return {
            name: value
            for name, value in options.items()
            if name not in CONFIGURATION_FREE and name != "seed"
        }

    def metrics(self) -> list[Line]:
        return list(run_folder.read_steps(self.folder / run_folder.LOG))

    def similarities(self) -> list[Line]:
        """The lines of the similarity log; [] if the run had no --log_similarity."""
        log = self.folder / run_folder.SIMILARITY_LOG
        return list(run_folder.read_steps(log)) if log.is_file() else []


def as_folder(loss: str) -> str:
    """Return a folder name for a loss: its string without brackets and spaces."""
    return re.sub(r"[^\w.=+]+", "-", loss).strip("-")


def differing(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between dictionaries; a missing value counts as None."""
    keys = dict.fromkeys(key for each in options for key in each)
    return [key for key in keys if any(each.get(key) != options[0].get(key) for each in options)]
