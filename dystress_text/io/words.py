"""Read the words of a text: without stop words, as stems, in one language.

Example:
    >>> WordReader("english").tokens("The cats sat on 2 mats")
    ['cat', 'sat', 'mat']
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice

import snowballstemmer

from dystress_text.errors import ParameterError
from dystress_text.io.text_lines import UNSPACED

# languages with a Snowball stemmer; porter and dutch_porter are earlier stemmers of two of them
LANGUAGES = tuple(
    name for name in sorted(snowballstemmer.algorithms()) if not name.endswith("porter")
)
PREFIX = 5  # letters that stand for the stem where there is no stemmer
# vowel signs and accents, which \w lacks: combining, Hebrew, Arabic, Devanagari to Sinhala
MARKS = "\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_WORD = re.compile(rf"[\w{MARKS}]{{2,}}")
_UNSPACED = re.compile(rf"[{UNSPACED}]+")
_NO_WORD = re.compile(rf"[_{UNSPACED}]+")
# bm25s has lists of these
_STOP_WORDS = (
    "danish",
    "dutch",
    "english",
    "french",
    "german",
    "italian",
    "norwegian",
    "portuguese",
    "russian",
    "spanish",
    "swedish",
    "turkish",
)
_SAMPLE = 1000  # texts of which the language is detected
_SAMPLE_LETTERS = 1000  # of each
_LEAST_SHARE = 0.1  # of stop words among the words of a text whose language is clear


@dataclass(frozen=True)
class WordReader:
    """Reads the words of texts in one language.

    Args:
        language: one of ``LANGUAGES``; or None: no stop words, and a word's first five letters
            stand for its stem.

    Raises:
        ParameterError: the language is not one of ``LANGUAGES``.
    """

    language: str | None

    def __post_init__(self) -> None:
        if self.language not in (None, *LANGUAGES):
            known = ", ".join(LANGUAGES)
            raise ParameterError("language", f"no stemmer for {self.language!r}; known: {known}")

    @cached_property
    def stop_words(self) -> frozenset[str]:
        """The stop words of the language; none if there is no list."""
        return _stop_words(self.language)

    def words(self, text: str) -> list[str]:
        """Return the runs of two or more letters and digits in lower case, without stop words.

        Scripts without spaces are left out.
        """
        return [word for word in _words(text) if word not in self.stop_words]

    def stem(self, word: str) -> str:
        """Return the stem of a word in lower case; without a language its first five letters.

        A number has no stem but itself.
        """
        if word.isdigit():
            return word
        if self.language is None:
            return word[:PREFIX]
        return _stem(self.language, word)

    def tokens(self, text: str) -> list[str]:
        """Return the stems of words, then the bigrams of characters in scripts without spaces.

        Without a language, each word, and its first letters if they are less than the word.
        """
        tokens = []
        for word in self.words(text):
            stem = self.stem(word)
            if self.language is None and stem != word:
                tokens.append(word)
            tokens.append(stem)
        return tokens + bigrams(text)


def bigrams(text: str) -> list[str]:
    """Return the bigrams of a text in scripts without spaces; a lone character as it is."""
    found = []
    for run in _UNSPACED.findall(text):
        found += [run[i : i + 2] for i in range(max(1, len(run) - 1))]
    return found


def language_of(texts: Iterable[str]) -> str | None:
    """Return the language whose stop words the first thousand texts use most.

    None if less than a tenth of the words are stop words of one language.
    """
    counts: Counter[str] = Counter()
    for text in islice(texts, _SAMPLE):
        counts.update(_words(text[:_SAMPLE_LETTERS]))
    used: Counter[str] = Counter()
    for language in _STOP_WORDS:
        used[language] = sum(counts[word] for word in _stop_words(language))
    language, most = used.most_common(1)[0]
    return language if most > _LEAST_SHARE * counts.total() else None


def _words(text: str) -> list[str]:
    composed = unicodedata.normalize("NFC", text).lower()
    return _WORD.findall(_NO_WORD.sub(" ", composed))


@cache
def _stop_words(language: str | None) -> frozenset[str]:
    from bm25s import stopwords  # slow to import

    if language not in _STOP_WORDS:
        return frozenset()
    name = "EN" if language == "english" else language.upper()
    return frozenset(getattr(stopwords, f"STOPWORDS_{name}"))


@cache
def _stemmer(language: str) -> snowballstemmer.stemmer:
    return snowballstemmer.stemmer(language)


@cache
def _stem(language: str, word: str) -> str:
    stem: str = _stemmer(language).stemWord(word)
    return stem
