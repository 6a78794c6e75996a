"""Which sentences of a text are held out of training, to measure on.

Sentences that stand together are held out together: documents (blank lines between them, or a table's column), or
blocks of consecutive lines where neighbouring lines are more alike than chance; else single lines. What is held out has
no near copy in training.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dystress_text.adaptation.near_copies import jaccard, repeats, with_near_copy
from dystress_text.errors import UserError
from dystress_text.files.text_lines import CorpusReport
from dystress_text.simcse.corpus import TrainingText

Structure = Literal["documents", "blocks", "lines"]

MOST_SHARE, LEAST, MOST = 0.2, 200, 2_000  # held out: a fifth, but at least 200 sentences and at most 2,000
FEWEST = 100  # that are left without near copies
UNITS = 40  # that are held out at least: a bootstrap draws them whole, so longer documents are cut
COMPARED = 2_000  # neighbouring lines that tell whether a text runs on
EVIDENCE = 5.0  # standard errors by which neighbouring lines are more alike than lines at random
SORTED = 0.9  # share of lines in alphabetical order from which on a file is sorted, not running text

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class HeldOut:
    """Sentences that training does not see.

    Attributes:
        sentences: in the order of the text; no two are near copies.
        places: their numbers in the text, rising, (n,).
        units: of each the document, block or line that was held out as a whole, (n,).
    """

    sentences: tuple[str, ...]
    places: Integers
    units: Integers

    def only(self, chosen: NDArray[np.bool_]) -> HeldOut:
        """Those of a mask (n,)."""
        kept = tuple(sentence for sentence, one in zip(self.sentences, chosen, strict=True) if one)
        return HeldOut(kept, self.places[chosen], self.units[chosen])

    def parts(self, seed: int) -> tuple[HeldOut, HeldOut]:
        """A third of the units to choose a model on, and the others to judge it on.

        A model chosen on the sentences that judge it looks better than it is.
        """
        units = np.random.default_rng(seed).permutation(np.unique(self.units))
        first = np.isin(self.units, units[::3])
        return self.only(first), self.only(~first)


@dataclass(frozen=True)
class Split:
    """A text in two parts.

    Attributes:
        structure: how sentences that stand together were told.
        train: numbers of the sentences to train on, rising.
        held_out: the others, but for what was left out.
        left_out: sentences in neither part, as they are near copies of one in training or of one held out.
    """

    structure: Structure
    train: Integers
    held_out: HeldOut
    left_out: int


def read_text(text: TrainingText) -> tuple[list[str], Integers]:
    """The sentences of a text and the document of each, which ends where line numbers leave one out.

    Raises:
        UserError: the text cannot be read.
    """
    places = array("q")
    sentences = list(text.sentences(CorpusReport(), None, places))
    return sentences, documents_of(places)


def documents_of(lines: Sequence[int]) -> Integers:
    """The document of each sentence from its line number, rising: lines in sequence belong together."""
    gaps = np.diff(np.asarray(lines, dtype=np.int64), prepend=lines[:1]) > 1
    return np.cumsum(gaps, dtype=np.int64)


def split_text(sentences: Sequence[str], documents: Integers, seed: int) -> Split:
    """Hold out a part of a text; the same sentences for the same seed.

    Args:
        sentences: of the text, in its order.
        documents: a number for the document of each, the same in sequence, (n,).
        seed: of the choice.

    Raises:
        UserError: too few sentences are left that have no near copy.
    """
    target = held_out_count(len(sentences))
    structure = structure_of(sentences, documents, seed)
    units = _units(structure, documents, max(1, target // UNITS), len(sentences))
    chosen = np.isin(units, _drawn(units, target, seed))
    drawn, train = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    found = HeldOut(tuple(sentences[i] for i in drawn.tolist()), drawn, units[drawn])
    distinct = found.only(~with_near_copy(found.sentences, (sentences[i] for i in train.tolist())))
    distinct = distinct.only(~repeats(distinct.sentences))
    if len(distinct.sentences) < min(FEWEST, target):
        raise UserError(
            f"FILE: the sentences are too alike to measure on: of {len(drawn):,} that were held out, "
            f"{len(drawn) - len(distinct.sentences):,} are near copies of others"
        )
    return Split(structure, train, distinct, len(drawn) - len(distinct.sentences))


def held_out_count(sentences: int) -> int:
    """How many of so many sentences are held out: at most half of them."""
    return min(max(LEAST, round(MOST_SHARE * sentences)), MOST, sentences // 2)


def structure_of(sentences: Sequence[str], documents: Integers, seed: int) -> Structure:
    """What stands together in a text: documents, neighbouring lines, or nothing.

    Documents count where there are several and half of the sentences share theirs with another one.
    """
    _, document, size = np.unique(documents, return_inverse=True, return_counts=True)
    if len(size) > 1 and (size[document] > 1).mean() >= 0.5:
        return "documents"
    return "blocks" if _runs_on(sentences, seed) else "lines"


def _runs_on(sentences: Sequence[str], seed: int) -> bool:
    """Whether neighbouring lines have more in common than lines far apart, in a text that is not sorted."""
    n = len(sentences)
    if n < 3:
        return False
    rng = np.random.default_rng([seed, 1])
    places = np.sort(rng.permutation(n - 1)[:COMPARED])
    far = (places + rng.integers(2, n, len(places))) % n  # neither the line nor the next one
    here = [sentences[i] for i in places.tolist()]
    following = [sentences[i + 1] for i in places.tolist()]
    if np.mean([a.casefold() <= b.casefold() for a, b in zip(here, following, strict=True)]) > SORTED:
        return False
    more = jaccard(here, following) - jaccard(here, [sentences[i] for i in far.tolist()])
    return bool(more.mean() > EVIDENCE * more.std() / np.sqrt(len(more)))


def _units(structure: Structure, documents: Integers, longest: int, n: int) -> Integers:
    """The unit of each sentence, (n,): documents in pieces of about equal size, at most ``longest``; blocks; lines."""
    if structure == "lines":
        return np.arange(n)
    documents = documents if structure == "documents" else np.zeros(n, dtype=np.int64)
    first = np.flatnonzero(np.diff(documents, prepend=documents[0] - 1))
    size = np.diff(first, append=n)
    pieces = -(-size // longest)
    inside = np.arange(n) - np.repeat(first, size)
    piece = inside * np.repeat(pieces, size) // np.repeat(size, size)
    return np.asarray(np.repeat(np.cumsum(pieces) - pieces, size) + piece, dtype=np.int64)


def _drawn(units: Integers, target: int, seed: int) -> Integers:
    """Units drawn at random whose sentences are at most ``target``, (k,); at least one unit."""
    names, size = np.unique(units, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    return np.asarray(names[order[: max(1, int((np.cumsum(size[order]) <= target).sum()))]])
