"""Break the product line by line, and show that the fast tests see it.

    python tests/break_lines.py --list
    python tests/break_lines.py                       # all of them, a quarter of an hour on two cores
    python tests/break_lines.py blockwise-triangle    # some of them, by name
    python tests/break_lines.py --jobs 4              # copies of the checkout side by side

Each break replaces one fragment of code in a copy of the checkout, its working tree without docs/, and runs the fast
tests of the files that should fail. A fragment is looked up over the whole product, and a test file by its name alone,
so that files may move. First the same files run unbroken: a test that always fails sees nothing. The exit code is 0 if
every break was seen, 1 otherwise. Tests that want data beside the checkout are skipped in a copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("dystress_text", "eval", "data", "vision")
SEEN = "seen"
LONGEST = 600  # seconds of one run of tests; a break may make a program wait for ever
FAILED = 1  # pytest's exit code where tests failed; another one is no verdict


@dataclass(frozen=True)
class Break:
    """A line that is made wrong.

    Attributes:
        name: to choose it by.
        find: code that stands in one place of the product.
        replace: what is put there instead; still Python.
        tests: names of test files, one of which has a fast test that fails then.
    """

    name: str
    find: str
    replace: str
    tests: tuple[str, ...]


BREAKS: tuple[Break, ...] = (
    Break(
        "blockwise-temperature-state",
        "copy.deepcopy(temperature) if torch.is_grad_enabled() else temperature",
        "temperature",
        ("test_blockwise.py",),
    ),
    Break("blockwise-triangle", "row.start if self.symmetric else 0", "0", ("test_blockwise.py",)),
    Break("gather-gradient-sum", "dist.all_reduce(total, group=gather.group)", "pass", ("test_gather.py",)),
    Break(
        "hard-negatives-bonus-blockwise",
        "amounts += [pairs.bonus] *",
        "amounts += [0.0] *",
        ("test_hard_negatives.py",),
    ),
    Break(
        "duplicates-left-out",
        "logits = logits.masked_fill(self.ids.equal(rows, slice(None)), NOTHING)",
        "pass",
        ("test_hard_negatives.py",),
    ),
    Break(
        "info-nce-formula",
        "-F.logsigmoid(rows.positive - rows.negatives)",
        "rows.negatives - rows.positive",
        ("test_objectives.py",),
    ),
    Break(
        "anchor-is-no-negative",
        "(self.positive_column, self.excluded_column) if",
        "(self.positive_column,) if",
        ("test_objectives.py",),
    ),
    Break(
        "dcl-decoupled",
        "return rows.negatives - positive",
        "return -F.logsigmoid(positive - rows.negatives)",
        ("test_objectives.py",),
    ),
    Break("dclw-weights", "weight = 2 - len(similarity)", "weight = 1 - len(similarity)", ("test_objectives.py",)),
    Break(
        "macl-reweighting",
        "F.logsigmoid(-safe).neg() / torch.sigmoid(safe)",
        "F.logsigmoid(-safe).neg()",
        ("test_objectives.py",),
    ),
    Break("macl-temperature-positive", "if not tau > 0:", "if False:", ("test_temperature_checks.py",)),
    Break("queue-oldest-out", "[-len(self.queue) :]", "[: len(self.queue)]", ("test_queue.py",)),
    Break(
        "temperature-detached",
        "similarity.detach() if detach_temperature else similarity",
        "similarity",
        ("test_loss_gradients.py",),
    ),
    Break(
        "shifted-cosine-side",
        "offset.clamp(max=0) if shift <= 0",
        "offset.clamp(min=0) if shift <= 0",
        ("test_temperature.py",),
    ),
    Break("profile-positive", "if not bool((tau > 0).all()):", "if False:", ("test_temperature_checks.py",)),
    Break(
        "learned-upper-bound",
        "tau + (self.high - tau) * torch.sigmoid(free[1])",
        "tau + self.high * torch.sigmoid(free[1])",
        ("test_learnable.py",),
    ),
    Break("packed-padding", "scores.masked_fill(~mask, torch.finfo(scores.dtype).min)", "scores", ("test_packed.py",)),
    Break("dropout-views-differ", "if torch.equal(first, second):", "if False:", ("test_train.py",)),
    Break(
        "head-dropped",
        "self.head is not None and (self.training or self.keep_head)",
        "self.head is not None",
        ("test_heads.py",),
    ),
    Break("lora-merged", ".merge_and_unload()", ".unload()", ("test_lora.py",)),
    Break("no-decay-on-biases", '"weight_decay": 0.0},', '"weight_decay": weight_decay},', ("test_optimizers.py",)),
    Break(
        "checkpoint-checksum",
        "path.stat().st_size != size or sha256_of(path) != sha256",
        "path.stat().st_size != size",
        ("test_checkpoints.py",),
    ),
    Break("folder-set-aside", "final.rename(aside)", "shutil.rmtree(final)", ("test_search.py",)),
    Break(
        "resume-same-run",
        "[name for name in {**then, **now} if then.get(name) != now.get(name)]",
        "[]",
        ("test_engine.py",),
    ),
    Break("resume-log-shortened", "(_step_of(line) or math.inf) <= step", "True", ("test_train.py",)),
    Break(
        "sigterm-saves",
        "for number in (signal.SIGTERM, signal.SIGINT):",
        "for number in (signal.SIGINT,):",
        ("test_reliability.py",),
    ),
    Break(
        "model-staged",
        "staging = target / MODEL_STAGING",
        "staging = target / 'other' / MODEL_STAGING",
        ("test_train.py",),
    ),
    Break(
        "record-stage-and-rename",
        'staging.write_text(text, encoding="utf-8")',
        '(staging := file).write_text(text, encoding="utf-8")',
        ("test_reliability.py",),
    ),
    Break("token-redacted", 'return _TOKEN.sub("***", text)', "return text", ("test_fuzz_tokens.py",)),
    Break("errors-in-one-line", "one_line(str(error))}", "error}", ("test_train.py",)),
    Break("option-range", "if not 0 <= self.warmup_ratio <= 1:", "if False:", ("test_engine.py",)),
    Break(
        "preset-range-kept",
        'kept = ("tau_min", "tau_max") if named and profiles else ()',
        "kept = ()",
        ("test_text_presets.py",),
    ),
    Break(
        "preset-text-row",
        "_shifted(0.05, 0.07, -0.4, 0.7)",
        "_shifted(0.05, 0.07, -0.2, 0.6)",
        ("test_text_presets.py",),
    ),
    Break("corpus-nul", 'if b"\\0" in line:', "if False:", ("test_corpus.py",)),
    Break(
        "corpus-over-long",
        "while (rest := stream.readline(MAX_LINE_BYTES)) and",
        "while (rest := b'') and",
        ("test_corpus.py",),
    ),
    Break("builder-repetitions", "repeated.append(position)", "pass", ("test_corpus_builder.py",)),
    Break("splitter-abbreviations", "if lower in _NEVER_LAST:", "if False:", ("test_corpus_builder.py",)),
    Break("archive-traversal", 'or ".." in parts or', "or", ("test_unpack.py",)),
    Break("archive-tar-link", "if kind not in FILES + FOLDERS:", "if False:", ("test_unpack.py",)),
    Break(
        "archive-zip-link",
        "if kind not in (0, stat.S_IFDIR if folder else stat.S_IFREG):",
        "if False:",
        ("test_unpack.py",),
    ),
    Break("archive-ratio", "if self._left < 0:", "if False:", ("test_unpack.py",)),
    Break("data-verified", "elif sha256_of(file) != record.sha256:", "elif False:", ("test_preparation.py",)),
    Break("senteval-seed", "SEED = 1111", "SEED = 1112", ("test_classifier.py",)),
    Break("senteval-patience", "misses[s] >= recipe.patience", "misses[s] > recipe.patience", ("test_classifier.py",)),
    Break(
        "senteval-smallest-l2-on-ties",
        "int(np.argmax(scores))  # the",
        "len(scores) - 1 - int(np.argmax(scores[::-1]))  # the",
        ("test_transfer.py",),
    ),
    Break(
        "task-latin-1",
        'enumerate(read_lines(folder / file, "latin-1"), 1)',
        "enumerate(read_lines(folder / file), 1)",
        ("test_tasks.py",),
    ),
    Break(
        "sts-spearman",
        "100 * float(stats.spearmanr(x, y).statistic)",
        "100 * float(stats.pearsonr(x, y).statistic)",
        ("test_sts.py",),
    ),
    Break("embedder-once", "if key not in self._vectors}", "}", ("test_embedder.py",)),
    Break("report-deviation", "np.std(figures, ddof=1)", "np.std(figures)", ("test_comparison.py",)),
    Break(
        "search-exact",
        "bound = scores[:, -1].astype(np.float32) - np.float32(error)",
        "bound = scores[:, -1].astype(np.float32) + np.float32(error)",
        ("test_search.py",),
    ),
    Break("search-int8-rounding", "np.rint(vectors", "np.trunc(vectors", ("test_stored_vectors.py",)),
    Break("index-left-of-a-kill", "left.unlink()", "pass", ("test_search.py",)),
    Break("demo-host", "not in [[host] for host in self.server.hosts]:", "is None:", ("test_demo.py",)),
    Break("sweep-failure-noticed", "if code != 0:", "if False:", ("test_jobs.py",)),
    Break("card-licence", 'str(base.get("license") or _UNKNOWN)', '"apache-2.0"', ("test_card.py",)),
    Break(
        "export-hf-says-pooling", '"tokens": "mean" if layers else "first"', '"tokens": "first"', ("test_export.py",)
    ),
    Break("image-damaged", "image.load()", "pass", ("test_decoding.py",)),
    Break(
        "long-tail-counts",
        "n_max**steps * exact.numerator**i",
        "n_max**steps * exact.numerator ** (i + 1)",
        ("test_long_tail.py",),
    ),
    Break("knn-weights", "/ temperature).exp()", ").exp()", ("test_knn.py",)),
    Break("byol-momentum", "(1 + math.cos(math.pi * run_fraction)) / 2", "1.0", ("test_teachers.py",)),
    Break(
        "augment-crop-scale",
        "(min_scale + (1 - min_scale) * torch.rand(",
        "(min_scale * torch.rand(",
        ("test_augment.py",),
    ),
    Break("probe-schedule", "rate * (1 + math.cos(math.pi * step / steps)) / 2", "rate", ("test_probe.py",)),
    Break(
        "class-weights",
        "F.cross_entropy(logits, labels, weight=weights)",
        "F.cross_entropy(logits, labels)",
        ("test_class_weights.py",),
    ),
    Break("preset-image-value", '"weight_decay": 5e-4', '"weight_decay": 1e-4', ("test_presets.py",)),
)


def copy_checkout(target: Path) -> None:
    """Copy what git knows or would take in, as it lies in the working tree, without docs/."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in sorted(set(listed.stdout.decode().split("\0"))):
        if name and not name.startswith("docs/") and (ROOT / name).is_file():  # one that was removed is listed too
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def places_of(fragment: str, checkout: Path) -> list[Path]:
    """The product's file for each place where a fragment stands."""
    files = (file for part in PRODUCT for file in sorted((checkout / part).rglob("*.py")))
    return [file for file in files for _ in range(file.read_text(encoding="utf-8").count(fragment))]


def test_files(names: Iterable[str], checkout: Path) -> list[str]:
    """Paths of test files from their names.

    Raises:
        FileNotFoundError: there is none of that name.
    """
    found = []
    for name in names:
        paths = sorted((checkout / "tests").rglob(name))
        if not paths:
            raise FileNotFoundError(f"no test file {name}")
        found += [str(path.relative_to(checkout)) for path in paths]
    return found


def run_tests(names: Iterable[str], checkout: Path) -> tuple[int | None, str]:
    """Run the fast tests of some files up to the first failure: pytest's exit code and its last line; None: no end."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    environment = os.environ | {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            [*command, *test_files(names, checkout)], cwd=checkout, env=environment, timeout=LONGEST, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"no end after {LONGEST} s"
    lines = done.stdout.splitlines()
    told = [line for line in lines if line.startswith("FAILED")] or lines[-1:]
    return done.returncode, told[0] if told else ""


def outcome_of(each: Break, checkout: Path) -> str:
    """Apply a break to a copy, run its tests, put the file back, and say what became of it."""
    places = places_of(each.find, checkout)
    if len(places) != 1:
        return f"fragment not found ({len(places)} places)"
    before = places[0].read_bytes()
    try:
        places[0].write_bytes(before.replace(each.find.encode(), each.replace.encode()))
        code, told = run_tests(each.tests, checkout)
    except FileNotFoundError as error:
        return str(error)
    finally:
        places[0].write_bytes(before)
    if code == FAILED:
        return f"{SEEN}  {told}"
    return f"NOT SEEN  ({told})"


def run(breaks: Sequence[Break], jobs: int) -> list[str]:
    """Run breaks in so many copies of the checkout at once, and return the names of those that were not seen."""
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copies.put(Path(folder) / str(number))
            copy_checkout(Path(folder) / str(number))

        def work(each: Break) -> str | None:
            checkout = copies.get()
            begun = time.monotonic()
            try:
                outcome = outcome_of(each, checkout)
            finally:
                copies.put(checkout)
            print(f"{each.name:32} {time.monotonic() - begun:5.0f} s  {outcome}", flush=True)
            return None if outcome.startswith(SEEN) else each.name

        return [name for name in pool.map(work, breaks) if name is not None]


def sound(breaks: Sequence[Break]) -> bool:
    """Whether the tests pass where nothing is broken."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        copy_checkout(Path(folder))
        try:
            code, told = run_tests(sorted({name for each in breaks for name in each.tests}), Path(folder))
        except FileNotFoundError as error:
            code, told = None, str(error)
    print(f"{'(unbroken)':32} {time.monotonic() - begun:5.0f} s  {told}", flush=True)
    return code == 0


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="breaks to run; default all")
    parser.add_argument("--list", action="store_true", help="print the breaks and where they stand, and run nothing")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies side by side (default 1)")
    parser.add_argument("--skip_unbroken", action="store_true", help="do not run the tests unbroken first")
    options = parser.parse_args(argv)
    unknown = set(options.names) - {each.name for each in BREAKS}
    if unknown or options.jobs < 1:
        parser.error(f"no break {', '.join(sorted(unknown))}" if unknown else "--jobs: must be at least 1")
    breaks = [each for each in BREAKS if not options.names or each.name in options.names]
    if options.list:
        for each in breaks:
            where = ", ".join(str(path.relative_to(ROOT)) for path in places_of(each.find, ROOT)) or "nowhere"
            print(f"{each.name:32} {where}  by {' '.join(each.tests)}")
        return 0
    passed = options.skip_unbroken or sound(breaks)
    missed = run(breaks, options.jobs) if passed else []
    if passed:
        print(f"{len(breaks) - len(missed)} of {len(breaks)} seen" + (f"; not: {', '.join(missed)}" if missed else ""))
    return 0 if passed and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
