"""Read the words of texts as stems, without stop words, in one language.

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
        language: one of ``LANGUAGES``. With None no words are stop words, and the stem of a word is
            its first five letters.
        keep_stop_words: whether stop words are read, as for similarity, where "not" counts.

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
        """The language, as the option names it."""
        return self.language or NO_LANGUAGE

    @property
    def title(self) -> str:
        """The kind of tokens, such as ``English stems``."""
        if self.language is None:
            return "words and first letters"
        stems = f"{self.language.capitalize()} stems"
        return stems if self.stop_words else f"{stems}, stop words kept"

    @cached_property
    def stop_words(self) -> frozenset[str]:
        """The stop words to leave out; empty if there is no list for the language."""
        return frozenset() if self.keep_stop_words else _stop_words(self.language)

    def words(self, text: str) -> list[str]:
        """Return the words of a text in lower case, without stop words.

        A word is a run of at least two letters and digits. Scripts without spaces are left out.
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
        """Return the stems of words, then the character bigrams of scripts without spaces.

        A single character of such a script is a token by itself. Without a language, the tokens are
        words and, for longer words, also their first five letters.
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
    """Return the reader for a language, or for the language that texts are in.

    Args:
        language: one of ``LANGUAGES``, or ``none``; None to detect it.
        texts: texts to detect the language in, of which evenly spaced ones are read.
    """
    if language is None:
        return WordReader(language_of(texts[:: 1 + len(texts) // _SAMPLE]))
    return WordReader(None if language == NO_LANGUAGE else language)


def language_of(texts: Iterable[str]) -> str | None:
    """Return the language whose stop words are most frequent in texts.

    Return None if these are fewer than a tenth of all words. In a long text a single word counts as
    at most a fiftieth of all words: "on" is as frequent in Finnish as in French.
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
