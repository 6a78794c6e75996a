"""Run a command within a limit, and append a line of JSON about it to results, however it ends.

    python tests/gpu/row.py NAME SECONDS FOLDER COMMAND...

The line in ``FOLDER/results.jsonl`` has the JSON objects that the command printed;
``FOLDER/log.txt`` gets all its output while it runs. The exit code is that of the command, or 124
after SECONDS. If a signal ended it, ``rc`` in the line is minus the number of the signal.
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
    """Run a command, kill all that it started, and return its exit code."""
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
    """Parse the lines that are JSON objects; the last line may be incomplete."""
    found = []
    for line in lines:
        if line.startswith("{"):
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def main() -> int:
    """Run the command and append its line to the results."""
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
