"""Run a command within a limit, and append a line of JSON about it to results, however it ends.

    python tests/gpu/row.py NAME SECONDS FOLDER COMMAND...

FOLDER gets ``results.jsonl``, with the lines of JSON that the command printed until then, and all
that it said in ``log.txt``, written while it runs. The exit code is the command's, 124 if it took
longer; a command that a signal ended has its number less than 0 in the line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

TIMED_OUT = 124  # as of the command timeout
LAST = 15  # lines that are kept of a command that failed


def run(command: Sequence[str], limit: float, log: Path) -> int:
    """Run a command and what it starts, which end with it; returns the exit code."""
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        except KeyboardInterrupt:
            return -signal.SIGTERM
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def results_of(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects; the last line may be incomplete."""
    found = []
    for line in lines:
        if line.startswith("{"):
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def main() -> int:
    """Run the command and write its line."""
    name, limit, folder, *command = sys.argv[1:]
    # what ends the whole ends the command first
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    log = Path(folder) / "log.txt"
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"=== {name}: {' '.join(command)}\n")
    before = log.stat().st_size
    start = time.monotonic()
    code = run(command, float(limit), log)
    with log.open("rb") as stream:
        stream.seek(before)
        lines = stream.read().decode("utf-8", errors="replace").splitlines()
    row = {
        "row": name,
        "rc": code,
        "seconds": round(time.monotonic() - start, 1),
        "limit": float(limit),
        "results": results_of(lines),
        "last": lines[-LAST:] if code else [],
    }
    with (Path(folder) / "results.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")
    print(f"{name}: rc {code}, {row['seconds']} s", flush=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
