"""The fast part of the test suite on this machine, with what failed; it stops by itself when its time is over.

python tests/gpu/suite.py [--seconds 165] [--paths tests/core] [--processes 14]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections import Counter

import pytest
from programs import ROOT, report


class Watch:
    """Counts outcomes, keeps the names and last lines of failures, and ends the session in time."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.whole = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.failed:
            self.failures[report.nodeid] = (report.longreprtext.strip().splitlines() or [""])[-1][:300]
        if time.monotonic() > self.deadline:
            self.whole = False
            pytest.exit("the time is over")


def main() -> int:
    """Run pytest in this process; 1 unless all passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=165)
    parser.add_argument("--paths", nargs="+", default=["tests"])
    parser.add_argument("--processes", type=int, default=max(1, min(14, (os.cpu_count() or 1) - 1)))
    options = parser.parse_args()
    os.chdir(ROOT)
    words = [*options.paths, "-m", "not slow", "-p", "no:cacheprovider", "--tb=line"]
    if options.processes > 1 and importlib.util.find_spec("xdist") is not None:
        words += ["-n", str(options.processes), "--dist", "worksteal"]
    watch = Watch(options.seconds)
    pytest.main(words, plugins=[watch])
    complete = watch.whole and bool(watch.counts)
    report({"counts": watch.counts, "complete": complete, "failures": watch.failures})
    return 0 if complete and not watch.failures else 1


if __name__ == "__main__":
    sys.exit(main())
