"""A text that is split, and what is asked of models on the parts that training does not see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dystress_text.adaptation.checks import check_sentences
from dystress_text.adaptation.probes import FEWEST_CHANGED, Probes, make_probes
from dystress_text.adaptation.settings import AdaptSettings
from dystress_text.adaptation.split import Split, read_text, split_text
from dystress_text.errors import UserError
from dystress_text.simcse.training_text import training_text


@dataclass(frozen=True)
class Questions:
    """A text that is split, and what is asked on it.

    Attributes:
        sentences: all of them.
        split: of the text.
        choosing: probes on a third of what is held out.
        judging: probes on the rest.
    """

    sentences: list[str]
    split: Split
    choosing: Probes
    judging: Probes

    @classmethod
    def read(cls, settings: AdaptSettings) -> Questions:
        """Read, check and split the text that the settings name.

        Raises:
            UserError: the text cannot be read, or no adaptation can use it.
        """
        sentences, documents = read_text(training_text(settings.text()))
        check_sentences(sentences)
        split = split_text(sentences, documents, settings.seed)
        parts = split.held_out.parts(settings.seed)
        choosing, judging = (make_probes(part, split.structure, settings.seed) for part in parts)
        if not (choosing.probes and judging.probes):
            raise UserError(
                f"FILE: the sentences are too short to measure on: none of {FEWEST_CHANGED} words was held out"
            )
        return cls(sentences, split, choosing, judging)

    def account(self) -> dict[str, Any]:
        """How many sentences went where."""
        return {
            "structure": self.split.structure, "sentences": len(self.sentences), "trained_on": len(self.split.train),
            "chosen_on": len(self.choosing.sentences), "judged_on": len(self.judging.sentences),
            "left_out": self.split.left_out,
        }  # fmt: skip

    def words(self) -> str:
        """The account as a sentence."""
        account = self.account()
        what = {"documents": "documents", "blocks": "blocks of neighbouring lines", "lines": "single lines"}
        left = f"; {account['left_out']:,} are left out as near copies" if account["left_out"] else ""
        return (
            f"{account['sentences']:,} sentences: {account['trained_on']:,} train, {account['chosen_on']:,} choose the "
            f"model and {account['judged_on']:,} judge it, held out as {what[account['structure']]}{left}"
        )
