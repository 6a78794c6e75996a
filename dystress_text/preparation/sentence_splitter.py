"""Cutting a paragraph into sentences by rule, for English and other languages that put spaces between words.

A sentence ends at ``.``, ``!``, ``?``, an ellipsis or their kin, with the closing quotes and brackets behind it, where
white space and then a capital, a digit or a letter without case follow, opening quotes and brackets aside. A full stop
is an abbreviation's where the words on both sides say so.
"""

from __future__ import annotations

import re

END_MARKS = ".!?…؟।۔"  # noqa: RUF001
CLOSERS = "\"'”’»›)]"  # noqa: RUF001
_OPENERS = "\"'“‘„‚«‹¿¡(["  # noqa: RUF001

# One mark, not a run of them: each character is then looked at once, however long a run is.
_CANDIDATE = re.compile(rf"[{END_MARKS}](?:[{re.escape(CLOSERS)}]|\[\d{{1,3}}\])*+(\s++)[{re.escape(_OPENERS)}]*+(\w)")
_NEXT_WORD = re.compile(r"\w++(?!\.)")
_BEFORE_WORD = re.compile(r".*[^\w.]")  # a quote, a bracket or a dash
_LOOK_BACK = 20  # characters; longer words are not abbreviations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(  # a name or an example follows
    "mr mrs ms mx dr prof gen col lt sgt cpl pvt capt cmdr maj adm brig rev fr hon gov sen rep pres supt insp messrs "
    "mme mlle mgr msgr e.g i.e eg ie cf viz vs v ca approx esp incl"
)
_BEFORE_NUMBERS = _words(
    "no nos nr vol vols p pp fig figs ch chap sec op c eq eqs ed est al pt ver tel ext h.r "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
_SELDOM_LAST = _words(  # a sentence ends there only before a word that starts many
    "inc ltd co corp bros jr sr esq etc al dept univ assn ave blvd rd hwy bldg st ste mt ft ph.d phd b.sc m.sc c eds "
    "trans jan feb aug sep sept oct nov dec"
)
_STARTERS = _words(
    "The He She It They We You This That These Those There Then In On At As By For From With When While Where After "
    "Before Since Although Though However His Her Its Their Our My But And So If Both Most Many Some Such One Another "
    "During Under Also According Because Despite Meanwhile Following Today Later What Who Why How Each Every"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph in order, with the white space between them removed."""
    sentences = []
    start = 0
    for match in _CANDIDATE.finditer(text):
        following = match[2]
        if following.islower() or (text[match.start()] in ".…" and _goes_on(text, start, match)):
            continue
        sentences.append(text[start : match.start(1)])
        start = match.end(1)
    sentences.append(text[start:])
    return sentences


def _goes_on(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether the sentence that began at ``start`` goes on behind a full stop or an ellipsis."""
    mark, following = match.start(), match[2]
    if text[mark] == "…" or text[mark - 1 : mark] == ".":
        return following == "I" and _next_word(text, match) == "I"
    before = text[max(start, mark - _LOOK_BACK) : mark].rsplit(None, 1)
    word = _BEFORE_WORD.sub("", before[-1]) if before else ""
    if not word:
        return False
    lower = word.lower()
    if lower in _NEVER_LAST:
        return True
    if following.isdigit():
        return lower in _BEFORE_NUMBERS or _is_list_number(text, start, mark)
    if len(word) == 1 and word.isalpha():
        initial = word.isupper()
    elif word.isdigit():
        return _is_list_number(text, start, mark)
    else:
        initial = _is_dotted(word)
    return (initial or lower in _SELDOM_LAST) and _next_word(text, match) not in _STARTERS


def _is_dotted(word: str) -> bool:
    """Whether a word is letters with full stops between them, such as U.S or a.m."""
    return len(word) <= 9 and "." in word and all(len(part) == 1 and part.isalpha() for part in word.split("."))


def _is_list_number(text: str, start: int, mark: int) -> bool:
    """Whether all of the sentence so far is a number of up to three digits, as in "1. The first"."""
    return mark - start <= 3 and text[start:mark].isdigit()


def _next_word(text: str, match: re.Match[str]) -> str:
    """The word behind a candidate; empty where a full stop follows it, as behind an initial."""
    word = _NEXT_WORD.match(text, match.start(2))
    return word[0] if word else ""
