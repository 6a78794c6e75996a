"""From a block of a corpus file to clean sentences. Workers run this, so it imports only the standard library.

A block is lines of one of four kinds: ``wiki`` (WikiExtractor's ``<doc ...>`` form), ``json`` (its ``--json`` form),
``lines`` (a paragraph a line) and ``wrapped`` (paragraphs over several lines). Whatever is left out is counted by
reason.
"""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from html import unescape
from pathlib import Path
from typing import Literal

from dystress_text.preparation.sentence_splitter import CLOSERS, END_MARKS, split_sentences

Kind = Literal["wiki", "json", "lines", "wrapped"]

MAX_CHARACTERS = 5_000  # of a sentence, however few its words

_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BULLETS = "*•·‣▪◦-:;"
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_UNSEEN = re.compile(  # controls other than white space, marks of direction and width, soft hyphens, U+FEFF
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]+"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_HEADING = re.compile(r"#{1,6}\s|Section::::")
_BULLET = re.compile(rf"(?:[{re.escape(_BULLETS)}]++|BULLET::::[-*]?)\s+")
_TABLE = ("|", "!", "{|", "{{", "}}")
_CATEGORY = ("Category:", "[[Category:", "CATEGORY:")
_LINK = re.compile(r"\[\[(?:[^\[\]|]*+\|)?([^\[\]|]*+)\]\]")
_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9]*+(?:[\s/][^<>]*+)?>|<!--")
_NO_CONTENT = re.compile(r" \([\s,;:]*+\)")  # what is left of a pronunciation
_TITLE = re.compile(r'<doc [^>]*\btitle="([^"]*)"')


@dataclass(frozen=True)
class Block:
    """Whole lines of a file.

    Attributes:
        path: the file.
        line: number of the first line, from 1.
        kind: of the file.
        data: the lines.
        position: bytes read so far of all files as they lie on disk.
    """

    path: Path
    line: int
    kind: Kind
    data: bytes
    position: int


@dataclass
class CleanText:
    """The sentences of a block and what was left out of it.

    Attributes:
        text: the sentences, UTF-8, a line feed after each.
        hashes: 64 bits of each sentence.
        lines: of each sentence, the line of the block where its paragraph starts, counting from 0.
        counts: how often each reason occurred.
        first: the line where it occurred first, counting from 0.
    """

    text: bytes = b""
    hashes: array[int] = field(default_factory=lambda: array("Q"))
    lines: array[int] = field(default_factory=lambda: array("L"))
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    def note(self, reason: str, line: int) -> None:
        """Count a finding."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.first.setdefault(reason, line)


def clean_block(block: Block, min_words: int, max_words: int) -> CleanText:
    """The clean sentences of a block in order, repetitions included; of ``min_words`` to ``max_words`` words."""
    cleaned = CleanText()
    found, hashes = list[bytes](), list[bytes]()
    for line, raw in _paragraphs(_decode(block.data, cleaned), block.kind, cleaned):
        paragraph, reason = clean_paragraph(raw)
        if reason:
            cleaned.note(reason, line)
            continue
        for piece in split_sentences(paragraph):
            words = piece.split()
            if len(words) < min_words:
                cleaned.note("too_short", line)
                continue
            sentence = " ".join(words)
            if len(words) > max_words or len(sentence) > MAX_CHARACTERS:
                cleaned.note("too_long", line)
                continue
            if not sentence.isascii():
                sentence = unicodedata.normalize("NFC", sentence)
            encoded = sentence.encode()
            if reason := _unusable(sentence, encoded, len(sentence) - len(words) + 1):
                cleaned.note(reason, line)
                continue
            found.append(encoded)
            hashes.append(blake2b(encoded, digest_size=8).digest())
            cleaned.lines.append(line)
    cleaned.hashes.frombytes(b"".join(hashes))
    cleaned.text = b"".join([sentence + b"\n" for sentence in found])
    return cleaned


def clean_paragraph(text: str) -> tuple[str, str]:
    """A paragraph without entities, bullets, links and invisible characters; and why it is left out, or ""."""
    if "&" in text:  # dumps hold entities of entities, such as &amp;nbsp;
        text = _ENTITY.sub(_unescape, _ENTITY.sub(_unescape, text))
    if not text.isprintable():
        text = _UNSEEN.sub("", text)
    text = text.strip()
    if (text.startswith("=") and text.endswith("=")) or _HEADING.match(text):
        return text, "heading"
    if text.startswith(_TABLE):
        return text, "markup"
    if text.startswith(_CATEGORY):
        return text, "category"
    if bullet := _BULLET.match(text):
        text = text[bullet.end() :]
        if not text.rstrip(CLOSERS).endswith(tuple(END_MARKS)):
            return text, "list_item"
    if "'''" in text:
        text = text.replace("'''", "").replace("''", "")
    if "[[" in text:
        text = _LINK.sub(r"\1", text)
    if "{{" in text or "}}" in text or "[[" in text or "]]" in text or "{|" in text or "|}" in text:
        return text, "markup"
    if "<" in text and _TAG.search(text):
        return text, "html"
    return _NO_CONTENT.sub("", text) if " (" in text else text, ""


def _unescape(match: re.Match[str]) -> str:
    return unescape(match[0])


def _unusable(sentence: str, encoded: bytes, characters: int) -> str:
    """Why a sentence with so many characters other than spaces is left out, or ""."""
    if "\ufffd" in sentence:
        return "undecodable"
    letters = len(encoded) - len(encoded.translate(None, _LETTERS))
    if 2 * letters < characters:
        letters = sum(map(str.isalpha, sentence))
        if not letters:
            return "no_letters"
        if 2 * letters < characters:
            return "few_letters"
    return ""


def _decode(data: bytes, cleaned: CleanText) -> str:
    """The block as text; lines with bytes that are not UTF-8 are counted, and U+FFFD replaces those bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        for number, line in enumerate(data.split(b"\n")):
            try:
                line.decode()
            except UnicodeDecodeError:
                cleaned.note("invalid_utf8", number)
        return data.decode(errors="replace")


def _paragraphs(text: str, kind: Kind, cleaned: CleanText) -> Iterator[tuple[int, str]]:
    """The paragraphs of a block, each with the line where it starts; titles are counted as headings."""
    lines = enumerate(text.split("\n"))
    if kind == "wiki":
        return _wiki_paragraphs(lines, cleaned)
    if kind == "json":
        return _json_paragraphs(lines, cleaned)
    if kind == "wrapped":
        return _wrapped_paragraphs(lines)
    return ((number, line) for number, line in lines if line and not line.isspace())


def _wiki_paragraphs(lines: Iterator[tuple[int, str]], cleaned: CleanText) -> Iterator[tuple[int, str]]:
    title = ""
    for number, line in lines:
        if line.startswith("<doc "):
            found = _TITLE.match(line)
            title = unescape(found[1]) if found else ""
        elif line and not line.isspace() and not line.startswith("</doc>"):
            if title and unescape(line).strip() == title:
                cleaned.note("heading", number)
            else:
                yield number, line
            title = ""


def _json_paragraphs(lines: Iterator[tuple[int, str]], cleaned: CleanText) -> Iterator[tuple[int, str]]:
    for number, line in lines:
        if not line or line.isspace():
            continue
        try:
            document = json.loads(line)
            title, text = document.get("title"), _SURROGATE.sub("\ufffd", document["text"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            cleaned.note("not_json", number)
            continue
        for place, paragraph in enumerate(filter(str.strip, text.split("\n"))):
            if place == 0 and paragraph.strip() == title:
                cleaned.note("heading", number)
            else:
                yield number, paragraph


def _wrapped_paragraphs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Lines joined up to the next empty one, list item; headings and the like stand alone."""
    start, parts = 0, list[str]()
    for number, line in lines:
        line = line.strip()
        alone = line.startswith((*_TABLE, *_CATEGORY, "=")) or _HEADING.match(line) is not None
        if parts and (not line or alone or _BULLET.match(line)):
            yield start, " ".join(parts)
            parts = []
        if alone:
            yield number, line
        elif line:
            start = start if parts else number
            parts.append(line)
    if parts:
        yield start, " ".join(parts)
