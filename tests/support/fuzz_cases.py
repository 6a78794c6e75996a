"""Damaged inputs for property tests, and a pickle that does harm.

The inputs are the same in every run. More of them, and other ones each time:

    DYSTRESS_FUZZ_EXAMPLES=5000 pytest tests/preparation/test_preparation.py
"""

import os
from datetime import timedelta

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from dystress_text.errors import UserError

EXAMPLES = int(os.environ.get("DYSTRESS_FUZZ_EXAMPLES", "0"))

ODD_BYTES = (
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\r",
    b"\n",
    b"\r\n",
    b"\t",
    b"\x1b[2J",
    b"\x85",
    "\u2028".encode(),
    b'"',
    b"'",
    b"{",
    b"[" * 3000,
    b"nan",
    b"-inf",
    b"1e999",
    b"9" * 5000,
    b"x" * 70_000,
)


def inputs(count):
    """Set the number of inputs of a test; the environment may ask for more."""
    return settings(
        max_examples=EXAMPLES or count,
        derandomize=not EXAMPLES,
        database=None,
        phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
        deadline=timedelta(seconds=20),
        suppress_health_check=list(HealthCheck),
    )


def accepted(work, *arguments, **options):
    """Return the result of some work, or None after a UserError with a message."""
    try:
        return work(*arguments, **options)
    except UserError as error:
        if not str(error).strip():
            raise
        return None


class Harm:
    """Create a folder when unpickled."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


@st.composite
def changed(draw, parts, odd):
    """Remove, double, move or replace a few parts of a list."""
    parts = list(parts)
    for _ in range(draw(st.integers(1, 3))):
        i = draw(st.integers(0, len(parts)))
        j = draw(st.integers(0, len(parts)))
        what = draw(st.sampled_from(("remove", "double", "move", "odd")))
        part = parts[i : i + 1]
        if what != "double":
            del parts[i : i + 1]
        if what != "remove":
            if what == "odd":
                part = [draw(odd)]
            parts[j:j] = part
    return parts


@st.composite
def spoiled(draw, content):
    """Change a few pieces of some bytes, and sometimes cut the end off."""
    size = draw(st.sampled_from((1, 2, 7, 40, 1000)))
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    odd = st.sampled_from(ODD_BYTES) | st.binary(max_size=12)
    content = b"".join(draw(changed(pieces, odd)))
    end = draw(st.just(len(content)) | st.integers(0, len(content)))
    return content[:end]
