"""Word pieces learned from a text in any script: a unigram model to which no character is unknown.

A piece is a character, or what at least two distinct words have in common: stems and endings rather than whole words.
``tokenizers``' own trainer starts from such pieces too, but does not find the same ones twice, so only its model is
used, with hard counts. What the text did not have falls back to bytes, each a piece.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

PIECES, READ = 8192, 200_000  # at most so many pieces, from so many texts
_WORDS, _CHARACTERS = 1_000_000, 500_000  # distinct words that are counted; characters of those that pieces come from
_PART, _LONGEST = 32, 16  # characters of a part of a word, as texts without spaces have them, and of a piece
_SEEDS, _KEPT = 10, 0.5  # pieces to begin with, of those wanted; the share that a round keeps
# letters with their marks and joiners, or one other sign; without spaces, control signs and zero-width spaces
_WORD = Regex(r"[\p{L}\p{M}\p{N}\u200c\u200d]+|[^\s\p{L}\p{M}\p{N}\p{Cc}\p{Cf}]")
_PAD, _BYTES = "[PAD]", [f"<0x{byte:02X}>" for byte in range(256)]


def learned_pieces(texts: Iterable[str], most: int = PIECES) -> Tokenizer:
    """A tokenizer of at most ``most`` pieces, more only if the text has more characters; the same for the same text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(_WORD, "removed", invert=True)
    words = _frequent(_words(tokenizer, islice(texts, READ)))
    scores = _seeds(words, _SEEDS * most)
    room = most - len(_BYTES) - 1 - sum(len(piece) == 1 for piece in scores)
    while True:
        for _ in range(2):
            tokenizer.model = _model(scores)
            counts = _counts(tokenizer, words)
            total = max(1, counts.total())
            scores = {p: math.log(max(0.5, counts[p]) / total) for p in scores if counts[p] or len(p) == 1}
        longer = sorted((p for p in scores if len(p) > 1), key=lambda p: (-counts[p], p))
        if len(longer) <= max(0, room):
            tokenizer.model = _model(scores)
            return tokenizer
        for piece in longer[max(0, room, int(_KEPT * len(longer))) :]:
            del scores[piece]


def _words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    words: Counter[str] = Counter()
    for text in texts:
        plain = tokenizer.normalizer.normalize_str(text)
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(plain):
            words.update([word] if len(word) <= _PART else (word[i : i + _PART] for i in range(0, len(word), _PART)))
        if len(words) > _WORDS:
            break
    return words


def _frequent(words: Counter[str]) -> dict[str, int]:
    """The most frequent words; of those that are as frequent a fair sample."""
    kept, characters = {}, 0
    for word, count in sorted(words.items(), key=lambda each: (-each[1], zlib.crc32(each[0].encode()), each[0])):
        characters += len(word)
        if characters > _CHARACTERS:
            break
        kept[word] = count
    return kept


def _seeds(words: dict[str, int], most: int) -> dict[str, float]:
    """All characters, and what is in most words for its length, with the scores to begin with."""
    within: Counter[str] = Counter()  # the number of distinct words, twice where a word has a piece twice
    for word in words:
        ends = range(1, len(word) + 1)
        within.update(word[max(0, end - size) : end] for end in ends for size in range(1, min(end, _LONGEST) + 1))
    longer = [piece for piece, count in within.items() if len(piece) > 1 and count > 1]
    weight = {piece: within[piece] * len(piece) for piece in sorted(p for p in within if len(p) == 1)}
    weight |= {p: within[p] * len(p) for p in sorted(longer, key=lambda p: (-within[p] * len(p), p))[:most]}
    total = sum(weight.values())
    return {piece: math.log(count / total) for piece, count in weight.items()}


def _model(scores: dict[str, float]) -> models.Unigram:
    least = min(scores.values(), default=0.0) - 10
    rest = [(piece, least) for piece in _BYTES]
    return models.Unigram([(_PAD, least), *sorted(scores.items()), *rest], unk_id=0, byte_fallback=True)


def _counts(tokenizer: Tokenizer, words: dict[str, int]) -> Counter[str]:
    """How often each piece is in words of those frequencies."""
    counts: Counter[str] = Counter()
    for encoding, count in zip(tokenizer.encode_batch(list(words)), words.values(), strict=True):
        for piece in encoding.tokens:
            counts[piece] += count
    return counts
