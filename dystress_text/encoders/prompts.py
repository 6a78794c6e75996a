"""Prompts of sentence-transformers models: what they put in front of each sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from dystress_text.errors import UserError


@dataclass(frozen=True)
class Prompts:
    """The prompts of a model.

    Attributes:
        texts: by name.
        default: the name of the one that is put in front of each sentence; None for none.
        pooled: whether the prompt's tokens take part in the pooling (``include_prompt``).
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    pooled: bool = True

    @property
    def text(self) -> str:
        """What is put in front of each sentence; empty without a default prompt."""
        return "" if self.default is None else self.texts[self.default]

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any], pooling: Mapping[str, Any]) -> Prompts:
        """From the settings of a model and of its pooling.

        Raises:
            ValueError: they are no prompts.
        """
        given, unset = settings.get("prompts") or {}, (("document", ""), ("query", ""))  # which every saved model has
        texts = {name: text for name, text in given.items() if text is not None and (name, text) not in unset}
        default, pooled = settings.get("default_prompt_name"), pooling.get("include_prompt", True)
        if not all(isinstance(text, str) for text in (*texts, *texts.values())) or not isinstance(pooled, bool):
            raise ValueError("its prompts are no texts")
        if default is not None and given.get(default) == "":
            default = None
        if default is not None and default not in texts:
            raise ValueError(f"its default prompt {default!r} is none of its prompts")
        return cls(texts, default, pooled)


def prompt_length(tokenizer: PreTrainedTokenizerBase, prompt: str) -> int:
    """The tokens of a prompt in front of a sentence, special tokens that begin a text included.

    As sentence-transformers counts them: those of the prompt alone, without a special token at its end.
    """
    ids = tokenizer(prompt)["input_ids"]
    return len(ids) - (len(ids) > 0 and ids[-1] in tokenizer.all_special_ids)


def check_prompt(prompt: str, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> None:
    """Check that a prompt leaves room for a sentence.

    Raises:
        UserError: it takes all tokens.
    """
    if prompt and prompt_length(tokenizer, prompt) + 2 > max_seq_length:
        raise UserError(f"--max_seq_length: the model's prompt {prompt!r} leaves no room for a sentence")
