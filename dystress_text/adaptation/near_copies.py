"""Sentences that are nearly the same: sets of character 5-grams that share at least 7 of 10 of their members.

The search is exact. Two sets x and y with |x & y| >= t |x | y| share one of their rarest members: of any common order
one of the first |x| - ceil(t |x|) + 1 of x and as many of y (prefix filter; Chaudhuri, Ganti and Kaushik, "A primitive
operator for similarity joins in data cleaning", 2006). Pairs that do are counted in full. Members are 44-bit hashes:
two different ones of a pair of sentences are taken for the same with a probability of some 1e-9.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTH = 5  # characters of a member
SHARE = 0.7  # of the members of both that near copies share at least (Jaccard)

_FIRST, _MOST = 512, 16_384  # sentences compared at a time: few at first, since those with a copy need no second
_PAIRS = 50_000  # counted at a time
_HASH_BITS = 44
_WORD = re.compile(r"[^\W_]+")
_ROUNDING = 1e-9

Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def normalized(sentence: str) -> str:
    """Letters and digits without case, a space between words; of a sentence that has none, the sentence."""
    text = unicodedata.normalize("NFKC", sentence).casefold()
    return " ".join(_WORD.findall(text)) or text.strip()


def with_near_copy(sentences: Sequence[str], others: Iterable[str], share: float = SHARE) -> NDArray[np.bool_]:
    """Which sentences have a near copy among others.

    Args:
        sentences: some thousands.
        others: any number; a part of them is in memory at a time.
        share: the Jaccard similarity from which on two sentences are near copies, in (0, 1].

    Returns:
        (n,).
    """
    found = np.zeros(len(sentences), dtype=bool)
    for part, _ in _parts(others):
        left = np.flatnonzero(~found)
        if len(left) == 0:
            break
        index = _Index.of([sentences[i] for i in left.tolist()], share)
        found[left[index.pairs(part)[0]]] = True
    return found


def repeats(sentences: Sequence[str], share: float = SHARE) -> NDArray[np.bool_]:
    """Which sentences are near copies of one that stands before them, (n,)."""
    found = np.zeros(len(sentences), dtype=bool)
    for part, start in _parts(sentences):
        left = start + np.flatnonzero(~found[start:])
        if len(left) == 0:
            break
        later, earlier = _Index.of([sentences[i] for i in left.tolist()], share).pairs(part)
        found[left[later[earlier + start < left[later]]]] = True
    return found


def jaccard(first: Sequence[str], second: Sequence[str]) -> NDArray[np.float64]:
    """The share of members that each pair of sentences has in common, (n,)."""
    a, b = _members(first), _members(second)
    common = np.intersect1d(a.keys(), b.keys(), assume_unique=True) >> np.uint64(_HASH_BITS)
    shared = np.bincount(common.astype(np.int64), minlength=len(first))
    return np.asarray(shared / (a.sizes + b.sizes - shared), dtype=np.float64)


@dataclass(frozen=True)
class _Members:
    """Distinct hashes of some sentences, one sentence after another, (total,), and how many each has, (n,)."""

    hashes: Hashes
    sizes: Integers

    def keys(self) -> Hashes:
        """The sentence's number and the hash, (total,), rising."""
        row = np.repeat(np.arange(len(self.sizes), dtype=np.uint64), self.sizes)
        return np.asarray(row << np.uint64(_HASH_BITS) | self.hashes, dtype=np.uint64)


def _members(sentences: Sequence[str]) -> _Members:
    texts = [f" {normalized(sentence)} ".ljust(LENGTH) for sentence in sentences]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    characters = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    windows = np.zeros(max(0, len(characters) - LENGTH + 1), dtype=np.uint64)
    for place in range(LENGTH):  # a polynomial modulo 2^64
        windows *= np.uint64(0x9E3779B97F4A7C15)
        windows += characters[place : place + len(windows)]
    windows ^= windows >> np.uint64(31)
    windows *= np.uint64(0xBF58476D1CE4E5B9)
    ends = np.cumsum(lengths)
    row = np.repeat(np.arange(len(texts), dtype=np.uint64), lengths)[: len(windows)]
    inside = np.arange(len(windows)) + LENGTH <= np.repeat(ends, lengths)[: len(windows)]
    keys = np.unique(row[inside] << np.uint64(_HASH_BITS) | windows[inside] >> np.uint64(64 - _HASH_BITS))
    sizes = np.bincount((keys >> np.uint64(_HASH_BITS)).astype(np.int64), minlength=len(texts))
    return _Members(keys & np.uint64(2**_HASH_BITS - 1), sizes)


@dataclass(frozen=True)
class _Index:
    """Sentences by their members.

    Attributes:
        vocabulary: all members, rising.
        rank: of each member, rarest first.
        rows: (n, members by rank), 1 where a sentence has a member.
        prefixes: the same with the rarest members of each sentence alone.
        sizes: members of each sentence.
        share: of near copies.
    """

    vocabulary: Hashes
    rank: Integers
    rows: Any
    prefixes: Any
    sizes: Integers
    share: float

    @classmethod
    def of(cls, sentences: Sequence[str], share: float) -> _Index:
        members = _members(sentences)
        vocabulary, place, count = np.unique(members.hashes, return_inverse=True, return_counts=True)
        rank = np.empty(len(vocabulary), dtype=np.int64)
        rank[np.argsort(count, kind="stable")] = np.arange(len(vocabulary))
        rows, prefixes = _matrices(rank[place], members.sizes, members.sizes, len(vocabulary), share)
        return cls(vocabulary, rank, rows, prefixes, members.sizes, share)

    def pairs(self, others: Sequence[str]) -> tuple[Integers, Integers]:
        """Near copies: numbers of a sentence and of one of the others, (m,) each."""
        members = _members(others)
        place = np.searchsorted(self.vocabulary, members.hashes).clip(max=len(self.vocabulary) - 1)
        known = self.vocabulary[place] == members.hashes
        number = np.repeat(np.arange(len(others)), members.sizes)[known]
        counts = np.bincount(number, minlength=len(others))  # members that the index knows; the others are rarer
        rows, prefixes = _matrices(self.rank[place[known]], counts, members.sizes, len(self.vocabulary), self.share)
        candidates = (self.prefixes @ prefixes.T).tocoo()
        ours, theirs = candidates.row.astype(np.int64), candidates.col.astype(np.int64)
        alike = np.zeros(len(ours), dtype=bool)
        for start in range(0, len(ours), _PAIRS):
            part = slice(start, start + _PAIRS)
            i, j = ours[part], theirs[part]
            shared = np.asarray(self.rows[i].multiply(rows[j]).sum(axis=1)).ravel()
            alike[part] = shared >= self.share * (self.sizes[i] + members.sizes[j] - shared) - _ROUNDING
        return ours[alike], theirs[alike]


def _matrices(ranks: Integers, counts: Integers, sizes: Integers, width: int, share: float) -> tuple[Any, Any]:
    """Sentences by members, and the same with the members of their prefixes alone.

    Args:
        ranks: of the known members, sentence after sentence, (total,).
        counts: known members of each sentence, (n,).
        sizes: all of its members, (n,); those that are not known come first in the order.
        width: number of ranks.
        share: of near copies.
    """
    from scipy.sparse import csr_array

    starts = np.concatenate([[0], np.cumsum(counts)])
    row = np.repeat(np.arange(len(counts)), counts)
    ranks = ranks[np.lexsort((ranks, row))]
    prefix = sizes - np.ceil(share * sizes - _ROUNDING).astype(np.int64) + 1 - (sizes - counts)  # of the known members
    kept = np.arange(len(ranks)) - starts[row] < prefix[row]
    shape = (len(counts), width)
    whole = csr_array((np.ones(len(ranks), np.int32), ranks, starts), shape=shape)
    ends = np.concatenate([[0], np.cumsum(np.bincount(row[kept], minlength=len(counts)))])
    return whole, csr_array((np.ones(int(kept.sum()), np.int32), ranks[kept], ends), shape=shape)


def _parts(sentences: Iterable[str]) -> Iterator[tuple[list[str], int]]:
    """Sentences in parts of growing size, each with the number of its first."""
    remaining, start, size = iter(sentences), 0, _FIRST
    while part := list(islice(remaining, size)):
        yield part, start
        start, size = start + len(part), min(2 * size, _MOST)
