"""Questions to an embedding that need no labels: a text, and which text among many it must find.

Random choices depend on the seed and the sentence alone, so they do not change with what else is held out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dystress_text.adaptation.split import HeldOut, Structure
from dystress_text.evaluation.catalogue import eval_pairs

NEIGHBOURS, HALVES, DROPPED, TRUNCATED = "neighbours", "halves", "dropped words", "truncation"
GENERAL = "general dropped words"

FEWEST_PIECES = 8  # words of a sentence that is cut in two
FEWEST_CHANGED = 4  # words of a sentence of which some are left out
DROPPED_SHARE = 0.5
KEPT_SHARE = 0.4  # of a truncated sentence

_LONG_WORD = 12  # mean characters a word from which on a script writes no spaces
_MARKS = tuple(",;:)\u2014\u2013\uff0c\uff1b\uff1a\u3001\u060c")  # dashes, full-width and Arabic ones too

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Probe:
    """Queries and what each must find.

    Attributes:
        name: of the measure.
        queries: (q,) texts.
        gallery: (g,) texts to be found.
        right: numbers in the gallery of what a query must find, one of them; (q, k), -1 where there are fewer.
        own: the number of the query itself in the gallery, which does not count; (q,), -1 where it is not there.
        units: see :class:`HeldOut`; (q,).
    """

    name: str
    queries: tuple[str, ...]
    gallery: tuple[str, ...]
    right: Integers
    own: Integers
    units: Integers


@dataclass(frozen=True)
class Probes:
    """All that is asked of a model.

    Attributes:
        sentences: (n,) held out, whose geometry is measured.
        units: of each, (n,).
        probes: on held-out sentences.
        general: words left out of general sentences, whose units have numbers below 0; None without.
        pairs: (p, 2) general sentences whose similarities should stay.
    """

    sentences: tuple[str, ...]
    units: Integers
    probes: tuple[Probe, ...]
    general: Probe | None = None
    pairs: tuple[tuple[str, str], ...] = field(default=())

    @property
    def all(self) -> tuple[Probe, ...]:
        """The probes on held-out sentences and on general ones."""
        return self.probes if self.general is None else (*self.probes, self.general)

    @property
    def texts(self) -> list[str]:
        """All distinct texts to encode."""
        asked = [text for probe in self.all for text in (*probe.queries, *probe.gallery)]
        return list(dict.fromkeys([*self.sentences, *asked, *(text for pair in self.pairs for text in pair)]))


def general_pairs() -> tuple[tuple[str, str], ...]:
    """The pairs of the embedded mini-STS, unrelated to alike; their scores are not used."""
    pairs = eval_pairs("mini_sts")
    assert pairs is not None
    return tuple(zip(pairs.first, pairs.second, strict=True))


def make_probes(
    held_out: HeldOut, structure: Structure, seed: int, general: Sequence[tuple[str, str]] | None = None
) -> Probes:
    """What is asked of the base and of every model that comes from it.

    Args:
        held_out: the sentences.
        structure: of their text; without one, no sentence has neighbours.
        seed: of the words that are left out.
        general: pairs of general sentences; None takes :func:`general_pairs`.
    """
    pairs = general_pairs() if general is None else tuple(general)
    distinct = tuple(dict.fromkeys(first for first, _ in pairs))
    probes = [
        neighbours(held_out) if structure != "lines" else None,
        halves(held_out.sentences, held_out.units),
        itself(DROPPED, held_out.sentences, held_out.units, lambda sentence: dropped(sentence, seed)),
        itself(TRUNCATED, held_out.sentences, held_out.units, truncated),
    ]
    return Probes(
        held_out.sentences,
        held_out.units,
        tuple(probe for probe in probes if probe is not None),
        itself(GENERAL, distinct, -1 - np.arange(len(distinct)), lambda sentence: dropped(sentence, seed)),
        pairs,
    )


def neighbours(held_out: HeldOut) -> Probe | None:
    """A sentence finds the one before or behind it in its unit; None if no sentence has one."""
    n = len(held_out.places)
    follows = (np.diff(held_out.places) == 1) & (np.diff(held_out.units) == 0)  # (n - 1,)
    right = np.full((n, 2), -1)
    right[1:, 0][follows] = np.arange(n - 1)[follows]
    right[:-1, 1][follows] = np.arange(1, n)[follows]
    asked = np.flatnonzero((right >= 0).any(axis=1))
    if len(asked) == 0:
        return None
    queries = tuple(held_out.sentences[i] for i in asked)
    return Probe(NEIGHBOURS, queries, held_out.sentences, right[asked], asked, held_out.units[asked])


def halves(sentences: Sequence[str], units: Integers) -> Probe | None:
    """The first half of a sentence finds the second one among all second halves; None if no sentence is long enough."""
    cut = [(parts, unit) for sentence, unit in zip(sentences, units, strict=True) if (parts := in_two(sentence))]
    if not cut:
        return None
    first, second = zip(*(parts for parts, _ in cut), strict=True)
    return _each_its_own(HALVES, first, second, np.arange(len(cut)), np.array([unit for _, unit in cut]))


def itself(name: str, sentences: Sequence[str], units: Integers, change: Callable[[str], str | None]) -> Probe | None:
    """A changed sentence finds itself among all; None if all are too short to be changed."""
    changed = [(text, i) for i, sentence in enumerate(sentences) if (text := change(sentence))]
    if not changed:
        return None
    places = np.array([i for _, i in changed])
    return _each_its_own(name, tuple(text for text, _ in changed), tuple(sentences), places, units[places])


def _each_its_own(
    name: str, queries: tuple[str, ...], gallery: tuple[str, ...], places: Integers, units: Integers
) -> Probe:
    return Probe(name, queries, gallery, places[:, None], np.full(len(queries), -1), units)


def in_two(sentence: str) -> tuple[str, str] | None:
    """A sentence behind the punctuation nearest to its middle, within its middle half; else behind its middle word.

    None for one of fewer than 8 words.
    """
    pieces, space = _pieces(sentence)
    n = len(pieces)
    if n < FEWEST_PIECES:
        return None
    least = max(3, n // 4)
    places = [k for k in range(least, n - least + 1) if pieces[k - 1].endswith(_MARKS)]
    place = min(places, key=lambda k: abs(2 * k - n), default=n // 2)
    return space.join(pieces[:place]), space.join(pieces[place:])


def dropped(sentence: str, seed: int) -> str | None:
    """Half of the words of a sentence, in their order; None for one of fewer than 4 words."""
    pieces, space = _pieces(sentence)
    if len(pieces) < FEWEST_CHANGED:
        return None
    kept = round(len(pieces) * (1 - DROPPED_SHARE))
    places = random.Random(f"{seed} {sentence}").sample(range(len(pieces)), kept)
    return space.join(pieces[i] for i in sorted(places))


def truncated(sentence: str) -> str | None:
    """The first words of a sentence, 4 of 10; None for one of fewer than 4 words."""
    pieces, space = _pieces(sentence)
    if len(pieces) < FEWEST_CHANGED:
        return None
    return space.join(pieces[: max(2, round(len(pieces) * KEPT_SHARE))])


def _pieces(sentence: str) -> tuple[list[str], str]:
    """Words and the space between them; characters and nothing where a script writes no spaces."""
    words = sentence.split()
    if words and len("".join(words)) > _LONG_WORD * len(words):
        return list("".join(words)), ""
    return words, " "
