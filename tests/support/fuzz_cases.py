"""What the fuzz tests share: how many inputs, how long each may take, and how files and values are spoiled.

The inputs are the same in every run. More of them, and other ones each time:

    DYSTRESS_FUZZ_EXAMPLES=5000 pytest tests/fuzz
"""

import copy
import json
import os
import signal
from contextlib import contextmanager
from datetime import timedelta

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from dystress_text.errors import UserError

EXAMPLES = int(os.environ.get("DYSTRESS_FUZZ_EXAMPLES", "0"))
PATIENCE = 20  # seconds an input may take

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
    """So many inputs for a test, or as many as the environment asks for."""
    return settings(
        max_examples=EXAMPLES or count,
        derandomize=not EXAMPLES,
        database=None,
        phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
        deadline=timedelta(seconds=PATIENCE),
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def within(seconds=PATIENCE):
    """What takes longer fails instead of hanging."""

    def late(*_):
        raise AssertionError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)  # of the test's own limit
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)


def accepted(work, *arguments, **options):
    """The result of some work, or None after an error of our own; every other error comes through."""
    with within():
        try:
            return work(*arguments, **options)
        except UserError as error:
            said = str(error)
        assert said.strip(), "an error that says nothing"
        return None


def snapshot(folder):
    """Every path in a folder, with what tells whether it was changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[path] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


@st.composite
def spoiled(draw, content):
    """Bytes with a few places changed, taken out, doubled, put in, exchanged, or cut off."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from((1, 2, 7, 40, 1000))))
        match draw(st.sampled_from(("flip", "remove", "double", "insert", "random", "exchange", "cut"))):
            case "flip" if start < end:
                content[start] ^= 1 << draw(st.integers(0, 7))
            case "remove":
                del content[start:end]
            case "double":
                content[end:end] = content[start:end]
            case "insert":
                content[start:start] = draw(st.sampled_from(ODD_BYTES))
            case "random":
                content[start:end] = draw(st.binary(max_size=12))
            case "exchange":
                other = draw(st.integers(0, len(content)))
                moved = bytes(content[start:end])
                del content[start:end]
                content[other:other] = moved
            case "cut":
                del content[start:]
    return bytes(content)


@st.composite
def spoiled_lines(draw, content, separator=b"\t"):
    """Text with lines or columns taken out, doubled, exchanged or replaced, and sometimes spoiled as bytes too."""
    lines = content.split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        if not lines:
            break
        i, j = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        columns = lines[i].split(separator)
        k, m = (draw(st.integers(0, len(columns) - 1)) for _ in range(2))
        match draw(st.sampled_from(("remove", "double", "exchange", "column", "columns", "odd", "more", "end"))):
            case "remove":
                del lines[i]
            case "double":
                lines.insert(j, lines[i])
            case "exchange":
                lines[i], lines[j] = lines[j], lines[i]
            case "column":
                del columns[k]
                lines[i] = separator.join(columns)
            case "columns":
                columns[k], columns[m] = columns[m], columns[k]
                lines[i] = separator.join(columns)
            case "odd":
                columns[k] = draw(st.sampled_from(ODD_BYTES))
                lines[i] = separator.join(columns)
            case "more":
                lines[i] += separator * draw(st.integers(1, 3))
            case "end":
                lines[i] += b"\r"
    content = b"\n".join(lines)
    return draw(spoiled(content)) if draw(st.integers(0, 3)) == 0 else content


@st.composite
def spoiled_value(draw, value, odd=ODD_VALUES):
    """A JSON value with a few entries replaced, taken out or added, at any depth."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        holder = value
        while isinstance(holder, dict | list) and holder:
            keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
            key = draw(st.sampled_from(keys))
            if isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 4)):
                holder = holder[key]
                continue
            what = draw(st.integers(0, 9))
            if what == 0:
                del holder[key]
            elif what == 1 and isinstance(holder, dict):
                holder[draw(st.text(max_size=5))] = copy.deepcopy(draw(st.sampled_from(odd)))
            else:
                holder[key] = copy.deepcopy(draw(st.sampled_from(odd)))
            break
    return value


def deep(levels=100_000):
    """JSON that is nested deeper than Python's stack."""
    return "[" * levels + "]" * levels
