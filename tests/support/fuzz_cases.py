"""What the fuzz tests share: how many inputs, and how files and values are spoiled.

The inputs are the same in every run. More of them, and other ones each time:

    DYSTRESS_FUZZ_EXAMPLES=5000 pytest tests/fuzz
"""

import copy
import json
import os
from datetime import timedelta

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from dystress_text.errors import UserError

EXAMPLES = int(os.environ.get("DYSTRESS_FUZZ_EXAMPLES", "0"))

NESTED = json.loads("[" * 200 + "]" * 200)
ODD_VALUES = (
    None, True, False, 0, 1, -1, 2, 2**31, 2**63, 10**30, 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), "", "x",
    "no", "../..", "/etc/passwd", "a\0b", "\ud800", "é" * 300, "[" * 50, [], [0], ["x"], [None], {}, {"x": 1}, NESTED,
)  # fmt: skip
ODD_BYTES = (
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"\r", b"\n", b"\r\n", b"\t",
    b"\x1b[2J", b"\x85", "\u2028".encode(), b'"', b"'", b"{", b"[" * 3000, b"nan", b"-inf", b"1e999", b"9" * 5000,
    b"x" * 70_000,
)  # fmt: skip


def inputs(count):
    """So many inputs for a test, or as many as the environment asks for; one takes 20 seconds at
    most.
    """
    return settings(
        max_examples=EXAMPLES or count,
        derandomize=not EXAMPLES,
        database=None,
        phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
        deadline=timedelta(seconds=20),
        suppress_health_check=list(HealthCheck),
    )


def accepted(work, *arguments, **options):
    """The result of some work, or None after an error of our own that says something; others come
    through.
    """
    try:
        return work(*arguments, **options)
    except UserError as error:
        if not str(error).strip():
            raise
        return None


def snapshot(folder):
    """Every path in a folder, with what tells whether it was changed."""
    found = {path: path.lstat() for path in folder.rglob("*")}
    return {
        path: (status.st_mode, status.st_size, status.st_mtime_ns) for path, status in found.items()
    }


class Harm:
    """Unpickled, it makes a folder."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


@st.composite
def changed(draw, parts, odd):
    """A list with a few parts taken out, doubled, moved, or replaced by odd ones."""
    parts = list(parts)
    for _ in range(draw(st.integers(1, 3))):
        i, j = (draw(st.integers(0, len(parts))) for _ in range(2))
        what = draw(st.sampled_from(("remove", "double", "move", "odd")))
        part = parts[i : i + 1]
        if what != "double":
            del parts[i : i + 1]
        if what != "remove":
            parts[j:j] = [draw(odd)] if what == "odd" else part
    return parts


@st.composite
def spoiled(draw, content):
    """Bytes of which a few pieces are changed, and sometimes the end is cut off."""
    size = draw(st.sampled_from((1, 2, 7, 40, 1000)))
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    content = b"".join(draw(changed(pieces, st.sampled_from(ODD_BYTES) | st.binary(max_size=12))))
    return content[: draw(st.just(len(content)) | st.integers(0, len(content)))]


@st.composite
def spoiled_lines(draw, content, separator=b"\t"):
    """Text of which a few lines, and columns of one, are changed, and sometimes its bytes too."""
    odd = st.sampled_from(ODD_BYTES)
    lines = draw(changed(content.split(b"\n"), odd)) or [b""]
    i = draw(st.integers(0, len(lines) - 1))
    lines[i] = separator.join(draw(changed(lines[i].split(separator), odd)))
    content = b"\n".join(lines)
    return draw(st.just(content) | spoiled(content))


@st.composite
def spoiled_value(draw, value, odd=ODD_VALUES):
    """A JSON value with an entry replaced or taken out, at any depth."""
    if not isinstance(value, dict | list) or not value or not draw(st.integers(0, 9)):
        return draw(st.sampled_from(odd))
    value = copy.copy(value)
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    if draw(st.integers(0, 9)):
        value[key] = draw(spoiled_value(value[key], odd))
    else:
        del value[key]
    return value


def deep(levels=100_000):
    """JSON that is nested deeper than Python's stack."""
    return "[" * levels + "]" * levels
