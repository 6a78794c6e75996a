"""Text that no adaptation can use: each check raises an error of one line."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.adaptation.near_copies import normalized
from dystress_text.core.rows import unit_vectors
from dystress_text.errors import UserError

FEWEST_SENTENCES = 500  # that differ in more than case and punctuation
SMALLEST_ANGLE = 1e-3  # radians; twice the rounding of fp32 vectors, sqrt(2 * 2^-23)
MOST_UNKNOWN = 0.1  # share of letters that the tokenizer does not know or writes byte by byte
MOST_SPELLED = 0.5  # share of letters that are tokens of their own within a word
LOOKED_AT = 1_000  # sentences

_WHOLE_SIGNS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "YI ")  # a sign is a word or a syllable


def check_sentences(sentences: Sequence[str]) -> None:
    """Refuse few sentences, and those that say the same over and over.

    Raises:
        UserError: fewer than 500, or fewer than 500 distinct ones.
    """
    if len(sentences) < FEWEST_SENTENCES:
        raise UserError(f"FILE: at least {FEWEST_SENTENCES} sentences are needed, got {len(sentences)}")
    distinct = len({normalized(sentence) for sentence in sentences})
    if distinct < FEWEST_SENTENCES:
        raise UserError(
            f"FILE: of {len(sentences):,} sentences only {distinct:,} are distinct; at least "
            f"{FEWEST_SENTENCES} are needed"
        )


def check_directions(vectors: Tensor) -> None:
    """Refuse sentences that the base cannot tell apart.

    Args:
        vectors: of the base, (n, dim).

    Raises:
        UserError: all lie within 0.001 radians of their mean.
    """
    units = unit_vectors(vectors.double().cpu())
    mean = unit_vectors(units.mean(dim=0, keepdim=True))
    angle = 2 * torch.asin((units - mean).norm(dim=1).clamp(max=2) / 2).max()  # exact where angles are small
    if angle < SMALLEST_ANGLE:
        raise UserError(
            f"--base: the model gives all sentences nearly the same vector (angles below {SMALLEST_ANGLE:g}); they are "
            "all alike to it"
        )


@dataclass(frozen=True)
class Spelling:
    """How a tokenizer writes the letters of a text, as shares of all letters.

    Attributes:
        letters: their number.
        unknown: in tokens that stand for what the tokenizer does not know.
        in_bytes: written by several tokens, a byte or some bits each.
        alone: tokens of their own within a longer word, in scripts where a letter is no word.
    """

    letters: int
    unknown: float
    in_bytes: float
    alone: float


def spelling(sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Spelling:
    """Look at some sentences, evenly spaced in a text.

    The offsets of a fast tokenizer tell all cases alike: WordPiece gives [UNK] the span of a word, byte-level BPE and
    SentencePiece's byte fallback give all bytes of a letter the letter's span.
    """
    step = -(-len(sentences) // LOOKED_AT)
    counts = [0, 0, 0, 0]
    for sentence in sentences[::step]:
        encoded = tokenizer(sentence, add_special_tokens=False, return_offsets_mapping=True)
        spans = [(start, end) for start, end in encoded["offset_mapping"]]
        of_sentence = _letters(sentence, spans, [one == tokenizer.unk_token_id for one in encoded["input_ids"]])
        counts = [count + more for count, more in zip(counts, of_sentence, strict=True)]
    letters = counts[0]
    unknown, in_bytes, alone = (count / max(1, letters) for count in counts[1:])
    return Spelling(letters, unknown, in_bytes, alone)


def check_language(sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a language that the tokenizer does not know.

    Raises:
        UserError: too many letters are unknown, written in bytes, or spelled one by one; or there is no letter.
    """
    if not tokenizer.is_fast:
        raise UserError(f"--base: {type(tokenizer).__name__} has no fast (tokenizers) form")
    found = spelling(sentences, tokenizer)
    if found.letters == 0:
        raise UserError("FILE: the sentences have no letters")
    if found.unknown + found.in_bytes > MOST_UNKNOWN:
        raise UserError(
            f"--base: its tokenizer does not know the language of the text: {found.unknown:.0%} of the letters are in "
            f"unknown tokens and {found.in_bytes:.0%} are written byte by byte"
        )
    if found.alone > MOST_SPELLED:
        raise UserError(
            f"--base: its tokenizer does not know the language of the text: it spells {found.alone:.0%} of it "
            "letter by letter"
        )


def _letters(sentence: str, spans: list[tuple[int, int]], unknown: list[bool]) -> tuple[int, int, int, int]:
    """Letters of a sentence: all, those in unknown tokens, those written in bytes, those that stand alone."""
    tokens = [0] * len(sentence)  # that cover a character
    in_unknown, single = [False] * len(sentence), [False] * len(sentence)
    for (start, end), is_unknown in zip(spans, unknown, strict=True):
        letters = [i for i in range(start, end) if sentence[i].isalpha()]
        for i in letters:
            tokens[i] += 1
            in_unknown[i] |= is_unknown
            single[i] = len(letters) == 1
    counts = [0, 0, 0, 0]
    for i, letter in enumerate(sentence):
        if letter.isalpha():
            counts[0] += 1
            if in_unknown[i]:
                counts[1] += 1
            elif tokens[i] > 1:
                counts[2] += 1
            elif single[i] and _beside(sentence, i) and not unicodedata.name(letter, "").startswith(_WHOLE_SIGNS):
                counts[3] += 1
    return counts[0], counts[1], counts[2], counts[3]


def _beside(sentence: str, i: int) -> bool:
    """Whether a letter has another one beside it."""
    return sentence[max(0, i - 1) : i].isalpha() or sentence[i + 1 : i + 2].isalpha()
