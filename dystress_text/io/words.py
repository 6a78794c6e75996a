"""Read the words of a text: without stop words, as stems, in one language.

Example:
    >>> WordReader("english").tokens("The cats sat on 2 mats")
    ['cat', 'sat', 'mat']
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import snowballstemmer

from dystress_text.cli.options import check_names
from dystress_text.io.text_lines import UNSPACED

# languages with a Snowball stemmer; porter and dutch_porter are earlier stemmers of two of them
LANGUAGES = tuple(
    name for name in sorted(snowballstemmer.algorithms()) if not name.endswith("porter")
)
NO_LANGUAGE = "none"  # its name as an option
PREFIX = 5  # letters that stand for the stem where there is no stemmer
# vowel signs and accents, which \w lacks: combining, Hebrew, Arabic, Devanagari to Sinhala
_MARKS = "\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
# for a regular expression: a word in lower case, and a run in scripts without spaces
WORD = rf"(?:[^\W_{UNSPACED}]|[{_MARKS}])+"
RUN = rf"[{UNSPACED}]+"
_SAMPLE = 1000  # texts of which the language is detected
_SAMPLE_LETTERS = 1000  # of each
_LEAST_SHARE = 0.1  # of stop words among the words of a text whose language is clear


@dataclass(frozen=True)
class WordReader:
    """Reads the words of texts in one language.

    Args:
        language: one of ``LANGUAGES``; or None: no stop words, and a word's first five letters
            stand for its stem.
        keep_stop_words: for similarity, where "not" counts.

    Raises:
        ParameterError: the language is not one of ``LANGUAGES``.
    """

    language: str | None
    keep_stop_words: bool = False

    def __post_init__(self) -> None:
        if self.language is not None:
            check_names("language", [self.language], LANGUAGES)

    @property
    def name(self) -> str:
        """The language as an option."""
        return self.language or NO_LANGUAGE

    @property
    def title(self) -> str:
        """What the tokens are, such as ``English stems``."""
        if self.language is None:
            return "words and first letters"
        stems = f"{self.language.capitalize()} stems"
        return stems if self.stop_words else f"{stems}, stop words kept"

    @cached_property
    def stop_words(self) -> frozenset[str]:
        """The stop words that are left out; none if the language has no list."""
        return frozenset() if self.keep_stop_words else _stop_words(self.language)

    def words(self, text: str) -> list[str]:
        """Return the runs of two or more letters and digits in lower case, without stop words.

        Scripts without spaces are left out.
        """
        found = re.findall(WORD, unicodedata.normalize("NFC", text).lower())
        return [word for word in found if len(word) > 1 and word not in self.stop_words]

    def stem(self, word: str) -> str:
        """Return the stem of a word in lower case; without a language its first five letters.

        A number is its own stem.
        """
        if word.isdigit():
            return word
        return _stem(self.language, word) if self.language else word[:PREFIX]

    def tokens(self, text: str) -> list[str]:
        """Return the stems of words, then the bigrams of characters in scripts without spaces.

        A lone character stays as it is.

        Without a language, each word, and its first letters if they are less than the word.
        """
        tokens = []
        for word in self.words(text):
            stem = self.stem(word)
            if self.language is None and stem != word:
                tokens.append(word)
            tokens.append(stem)
        for run in re.findall(RUN, text):
            tokens += [run[i : i + 2] for i in range(max(1, len(run) - 1))]
        return tokens


def reader_for(language: str | None, texts: Sequence[str]) -> WordReader:
    """Return the reader of a language, or of the texts' own.

    Args:
        language: one of ``LANGUAGES``, or ``none``; None for that of the texts.
        texts: evenly spaced ones are read.
    """
    if language is None:
        return WordReader(language_of(texts[:: 1 + len(texts) // _SAMPLE]))
    return WordReader(None if language == NO_LANGUAGE else language)


def language_of(texts: Iterable[str]) -> str | None:
    """Return the language whose stop words texts use most.

    None if less than a tenth of the words are stop words of one language. One word counts as at
    most a fiftieth of a long text: Finnish has "on" as often as French.
    """
    reader = WordReader(None)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(reader.words(text[:_SAMPLE_LETTERS]))
    highest = max(10, counts.total() // 50)
    used = {}
    for name in LANGUAGES:
        used[name] = sum(min(counts[word], highest) for word in _stop_words(name))
    most = max(LANGUAGES, key=used.__getitem__)
    return most if used[most] > _LEAST_SHARE * counts.total() else None


@cache
def _stop_words(language: str | None) -> frozenset[str]:
    from bm25s import stopwords  # slow to import

    name = "EN" if language == "english" else str(language).upper()
    return frozenset(getattr(stopwords, f"STOPWORDS_{name}", ()))


@lru_cache(200_000)
def _stem(language: str, word: str) -> str:
    return str(snowballstemmer.stemmer(language).stemWord(word))
