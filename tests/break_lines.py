"""Break the product line by line, and show that the fast tests see it.

    python tests/break_lines.py --list
    python tests/break_lines.py                       # all of them, a quarter of an hour on two cores
    python tests/break_lines.py packed-padding        # some of them, by name

Each break replaces one fragment of code in a copy of the checkout and runs the fast tests of one file, which should
fail. A fragment is looked up over the whole product, and a test file by its name alone, so that files may move. At the
end the tests that failed run once more with nothing broken: one that always fails sees nothing. The exit code is 0 if
every break was seen and those tests pass then.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("dystress_text", "vision")


class Break(NamedTuple):
    """Code that stands in one place of the product, what is put there instead, and the test file that fails then."""

    name: str
    find: str
    replace: str
    test: str  # a file's name, or ``file::test``


BREAKS: tuple[Break, ...] = (Break("knn-weights", "/ temperature).exp()", ").exp()", "test_knn.py"),)


def places_of(fragment: str, checkout: Path) -> list[Path]:
    """The product's file for each place where a fragment stands."""
    files = (file for part in PRODUCT for file in sorted((checkout / part).rglob("*.py")))
    return [file for file in files for _ in range(file.read_text(encoding="utf-8").count(fragment))]


def test_of(each: Break, checkout: Path) -> str:
    """The test of a break with its path; empty where there is none."""
    name, *test = each.test.split("::")
    found = [str(path.relative_to(checkout)) for path in (checkout / "tests").rglob(name)]
    return "::".join([found[0], *test]) if len(found) == 1 else ""


def failed(tests: list[str], checkout: Path) -> list[str]:
    """The first fast test that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    environment = os.environ | {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as said:  # a program left behind holds no pipe
        subprocess.run(command, cwd=checkout, env=environment, timeout=600, stdout=said, stderr=subprocess.STDOUT)
        said.seek(0)
        lines = [line for line in said.read().splitlines() if line.startswith("FAILED ")]
    return [line.removeprefix("FAILED ").partition(" - ")[0] for line in lines]


def run(breaks: list[Break], checkout: Path) -> int:
    """Run breaks one after another; 0 if all are seen, by tests that pass unbroken."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, check=True, text=True)  # fmt: skip
    for name in listed.stdout.splitlines():
        if not name.startswith("docs/") and (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    seen, missed = [], []
    for each in breaks:
        (place,) = places_of(each.find, checkout)
        whole = place.read_text(encoding="utf-8")
        place.write_text(whole.replace(each.find, each.replace), encoding="utf-8")
        found = failed([test_of(each, checkout)], checkout)
        place.write_text(whole, encoding="utf-8")
        seen += found
        missed += [] if found else [each.name]
        print(f"{each.name:32} {found[0] if found else 'NOT SEEN'}", flush=True)
    always = failed(sorted(set(seen)), checkout) if seen else []
    print(f"{len(breaks) - len(missed)} of {len(breaks)} seen; with nothing broken {always or 'all pass'}")
    return 1 if missed or always else 0


def main() -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *(each.name for each in BREAKS)])
    parser.add_argument("--list", action="store_true", help="print where breaks and tests stand, and run nothing")
    options = parser.parse_args()
    chosen = [each for each in BREAKS if each.name in options.names or not options.names]
    lost = [each.name for each in chosen if len(places_of(each.find, ROOT)) != 1 or not test_of(each, ROOT)]
    if options.list:
        print("\n".join(f"{each.name:32} {[*map(str, places_of(each.find, ROOT))]} {each.test}" for each in chosen))
    if lost:
        print(f"break_lines.py: the fragment does not stand in one place, or its test in none: {', '.join(lost)}")
    if lost or options.list:
        return 1 if lost else 0
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        return run(chosen, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
