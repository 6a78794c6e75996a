"""Break the product line by line, and show that the fast tests see it.

    python tests/break_lines.py --list
    python tests/break_lines.py                       # all of them, a quarter of an hour on two cores
    python tests/break_lines.py blockwise-triangle    # some of them, by name
    python tests/break_lines.py --jobs 4              # copies of the checkout side by side

Each break replaces one fragment of code in a copy of the checkout, its working tree without docs/, and runs the fast
tests of the files that should fail. A fragment is looked up over the whole product, and a test file by its name alone,
so that files may move. At the end the tests that failed run once more with nothing broken: one that always fails sees
nothing. The exit code is 0 if every break was seen and those tests pass then, 1 otherwise. Tests that want data beside
the checkout are skipped in a copy.
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
LONGEST = 600  # seconds of one run of tests; a break may make a program wait for ever
FAILED = 1  # pytest's exit code where tests failed; another one is no verdict


@dataclass(frozen=True)
class Break:
    """A line that is made wrong.

    Attributes:
        name: to choose it by.
        find: code that stands in one place of the product.
        replace: what is put there instead; still Python.
        tests: names of test files, one of which has a fast test that fails then; of a slow file ``file::test``.
    """

    name: str
    find: str
    replace: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a break.

    Attributes:
        name: of the break.
        seen: whether a test failed.
        told: the test that failed, or why none did.
        seconds: that it took.
    """

    name: str
    seen: bool
    told: str
    seconds: float


BREAKS: tuple[Break, ...] = (
    Break(
        "blockwise-temperature-state",
        "rule=rule.as_it_is() if torch.is_grad_enabled() else rule",
        "rule=rule",
        ("test_blockwise.py::test_backward_uses_the_mean_similarity_of_the_forward",),
    ),
    Break("blockwise-triangle", "row.start if self.symmetric else 0", "0", ("test_blockwise.py",)),
    Break("rule-debiased-bound", "(log_share < 0) & (estimate > bound)", "log_share < 0", ("test_rules.py",)),
    Break("rule-hcl-mean", "sums.sums[:, 0] - sums.sums[:, 1] + log_counts", "sums.sums[:, 0]", ("test_rules.py",)),
    Break(
        "rule-adnce-detached",
        "self._log_weight(similarity.detach())",
        "self._log_weight(similarity)",
        ("test_rules.py",),
    ),
    Break(
        "rule-hardness-detached",
        "self.hardness_strength * similarity.detach(),)",
        "self.hardness_strength * similarity,)",
        ("test_rules.py",),
    ),
    Break("rule-robust-gradient", "rho - divergence, 0).mean()", "rho, 0).mean()", ("test_rules.py",)),
    Break(
        "rule-samples-mirrored",
        "logits = [logit.T for logit in matrix.logits(similarity.T, columns, rows)]",
        "pass",
        ("test_rules.py",),
    ),
    Break("rule-siglip-underflow", "div_(costs).masked_fill_(nothing, 1)", "div_(costs)", ("test_rules.py",)),
    Break("audit-moved-half", ".sum(dim=(1, 2)) / 2", ".sum(dim=(1, 2))", ("test_comparison_with_constants.py",)),
    Break("gather-gradient-sum", "dist.all_reduce(total, group=gather.group)", "pass", ("test_gather.py",)),
    Break(
        "hard-negatives-bonus-blockwise",
        "amounts += [pairs.bonus] *",
        "amounts += [0.0] *",
        ("test_hard_negatives.py",),
    ),
    Break(
        "duplicates-left-out",
        "logits = logits.masked_fill(spared, NOTHING)",
        "pass",
        ("test_hard_negatives.py",),
    ),
    Break(
        "guide-of-each-row",
        "return self.alike is None or self.alike.threshold.ndim == 0",
        "return True",
        ("test_guide.py",),
    ),
    Break("guide-quantile-own", "similarity[rows[:, None] != ", "similarity[rows[:, None] >= ", ("test_guide.py",)),
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
        "self(similarity.detach() if detach else similarity)",
        "self(similarity)",
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
    Break(
        "packed-padding",
        "query, key, value, mask, rate, scale",
        "query, key, value, None, rate, scale",
        ("test_packed.py",),
    ),
    Break(
        "packed-padding-dropout",
        "scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax",
        "scores.softmax",
        ("test_packed.py",),
    ),
    Break(
        "dropout-views-differ",
        "if torch.equal(first, second):",
        "if False:",
        ("test_encoder.py::test_dropout_by_option",),
    ),
    Break(
        "head-dropped",
        "self.head is not None and (self.training or self.keep_head)",
        "self.head is not None",
        ("test_heads.py",),
    ),
    Break("lora-merged", ".merge_and_unload()", ".unload()", ("test_lora.py",)),
    Break(
        "no-decay-on-biases",
        '"weight_decay": 0.0},',
        '"weight_decay": weight_decay},',
        ("test_trainer.py::test_no_weight_decay_on_biases_and_norms",),
    ),
    Break(
        "checkpoint-checksum",
        "path.stat().st_size != record.bytes or sha256_of(path) != record.sha256",
        "path.stat().st_size != record.bytes",
        ("test_checkpoints.py",),
    ),
    Break(
        "best-model-is-the-highest",
        "or value > state.best_metric)",
        "or value < state.best_metric)",
        ("test_best_model.py",),
    ),
    Break(
        "best-model-is-a-copy",
        'nn.Parameter(parameter.to("cpu", copy=True)',
        'nn.Parameter(parameter.to("cpu")',
        ("test_best_model.py",),
    ),
    Break("native-pooling", '"mean" if layers else "cls"', '"cls"', ("test_encoder.py",)),
    Break("chunk-dropout-repeated", "torch.set_rng_state(states[0])", "pass", ("test_gradient_cache.py",)),
    Break("folder-set-aside", "final.rename(aside)", "shutil.rmtree(final)", ("test_whole.py",)),
    Break(
        "resume-same-run",
        "[name for name in {**then, **now} if then.get(name) != now.get(name)]",
        "[]",
        ("test_trainer.py::test_another_run_is_not_continued",),
    ),
    Break(
        "resume-log-shortened",
        "(_step_of(line) or math.inf) <= step",
        "True",
        ("test_train.py::test_what_a_kill_leaves_of_the_log_does_not_matter",),
    ),
    Break(
        "sigterm-saves",
        "for number in (signal.SIGTERM, signal.SIGINT):",
        "for number in (signal.SIGINT,):",
        ("test_reliability.py",),
    ),
    Break("model-readable", "file.chmod(mode)", "pass", ("test_encoder.py",)),
    Break("token-redacted", 'return _TOKEN.sub("***", text)', "return text", ("test_fuzz_settings.py",)),
    Break(
        "errors-in-one-line",
        'raise UserError(f"{message} (see --help)")',
        "raise SystemExit(message)",
        ("test_fuzz_settings.py",),
    ),
    Break(
        "option-range",
        'rises first.", interval="[0, 1]")',
        'rises first.")',
        ("test_trainer.py::test_settings_out_of_range_name_the_option",),
    ),
    Break("option-needs", "if needs is not None and", "if False and", ("test_options.py",)),
    Break(
        "preset-under-flags",
        "find_preset(preset, presets).settings, own_temperature",
        "{}, own_temperature",
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
    Break(
        "builder-repetitions",
        "return np.delete(np.arange(len(hashes)), first[new]).tolist()",
        "return []",
        ("test_corpus_builder.py",),
    ),
    Break("splitter-abbreviations", "if lower in _NEVER_LAST:", "if False:", ("test_corpus_builder.py",)),
    Break("archive-traversal", 'or ".." in parts or', "or", ("test_unpack.py",)),
    Break("archive-tar-link", "info.isfile() or folder, folder", "True, folder", ("test_unpack.py",)),
    Break(
        "archive-zip-link",
        "kind in (0, stat.S_IFDIR if folder else stat.S_IFREG), folder",
        "True, folder",
        ("test_unpack.py",),
    ),
    Break("archive-ratio", "if self._left < 0:", "if False:", ("test_unpack.py",)),
    Break("data-verified", "elif record_of(file) != record:", "elif False:", ("test_preparation.py",)),
    Break("senteval-seed", "SEED = 1111", "SEED = 1112", ("test_classifier.py",)),
    Break(
        "senteval-patience",
        "self.misses[s] >= self.patience",
        "self.misses[s] > self.patience",
        ("test_classifier.py",),
    ),
    Break(
        "senteval-smallest-l2-on-ties",
        "int(np.argmax(scores))  # the",
        "len(scores) - 1 - int(np.argmax(scores[::-1]))  # the",
        ("test_transfer.py",),
    ),
    Break(
        "task-latin-1",
        'for line in read_lines(path, "latin-1")',
        "for line in read_lines(path)",
        ("test_senteval_tasks.py",),
    ),
    Break(
        "sts-spearman",
        "100 * float(stats.spearmanr(x, y).statistic)",
        "100 * float(stats.pearsonr(x, y).statistic)",
        ("test_sts.py",),
    ),
    Break("embedder-once", "if key not in self._rows}", "}", ("test_embedder.py",)),
    Break("report-deviation", "np.std(figures, ddof=1)", "np.std(figures)", ("test_comparison.py",)),
    Break(
        "search-exact",
        "bound = scores[:, -1].astype(np.float32) - np.float32(error)",
        "bound = scores[:, -1].astype(np.float32) + np.float32(error)",
        ("test_search.py::test_exact_search_whatever_the_vectors",),
    ),
    Break(
        "random-pairs-each-once",
        "> np.arange(len(rows))[:, None]",
        ">= np.arange(len(rows))[:, None]",
        ("test_random_pairs.py",),
    ),
    Break("held-out-not-trained-on", "np.delete(np.arange(samples), self.samples)", "None", ("test_held_out.py",)),
    Break("search-int8-rounding", "np.rint(vectors", "np.trunc(vectors", ("test_stored_vectors.py",)),
    Break(
        "index-left-of-a-kill",
        "shutil.rmtree(staging, ignore_errors=True)  # left by a program that was killed",
        "pass",
        ("test_search.py::test_a_program_that_is_killed_while_adding_leaves_a_whole_index",),
    ),
    Break("demo-host", "not in [[host] for host in self.server.hosts]:", "is None:", ("test_demo.py",)),
    Break("sweep-failure-noticed", "if code:", "if False:", ("test_jobs.py",)),
    Break("card-licence", 'str(base.get("license") or _UNKNOWN)', '"apache-2.0"', ("test_card.py",)),
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
        "height * width * (low + (high - low) * torch.rand(",
        "height * width * (low * torch.rand(",
        ("test_augment.py",),
    ),
    Break(
        "picture-crop-key",
        "np.random.default_rng([*key, row])",
        "np.random.default_rng(key[:1])",
        ("test_pictures.py", "test_pretrain.py"),
    ),
    Break(
        "picture-crop-place",
        "return int(random.integers(width - w + 1)), int(random.integers(height - h + 1)), w, h",
        "return 0, 0, w, h",
        ("test_augment.py",),
    ),
    Break(
        "picture-crop-box",
        "box=(left, top, left + width, top + height)))",
        "box=(0, 0, width, height)))",
        ("test_pictures.py",),
    ),
    Break(
        "probe-in-training-mode",
        "    with evaluating(encoder):\n        shown",
        "    if True:\n        shown",
        ("test_probe.py",),
    ),
    Break(
        "lars-resumed",
        'case "step":  # some',
        'case "steps":  # some',
        ("test_pretrain.py",),
    ),
    Break(
        "checkpoint-device",
        '"device": accelerator.device.type,',
        "",
        ("test_devices.py",),
    ),
    Break(
        "augmentation-device",
        "augment.to(accelerator.device), 2, engine.seed",
        "augment, 2, engine.seed",
        ("test_meta_device_vision.py",),
    ),
    Break("probe-schedule", "rate * (1 + math.cos(math.pi * step / steps)) / 2", "rate", ("test_probe.py",)),
    Break(
        "class-weights",
        "F.cross_entropy(logits, labels, weight=weights)",
        "F.cross_entropy(logits, labels)",
        ("test_class_weights.py",),
    ),
    Break("macl-rows", 'both_views=settings.rows == "ntxent"', "both_views=False", ("test_macl_rows.py",)),
    Break("dino-own-crop", "for j, s in enumerate(student) if i != j", "for s in student", ("test_teachers.py",)),
    Break("paper-image-data-set", "if data == name_of(dataset) and", "if", ("test_paper_beside.py",)),
    Break(
        "verdict-judged-where-chosen",
        "choosing, judging = (make_probes(part, split.structure, settings.seed) for part in parts)",
        "choosing = judging = make_probes(parts[0], split.structure, settings.seed)",
        ("test_adapt.py",),
    ),
    Break(
        "adapted-without-a-win",
        "adapted = verdict.outcome == Outcome.WIN or settings.keep_anyway",
        "adapted = True",
        ("test_adapt.py",),
    ),
    Break("share-of-equal-points", "for alpha in sorted(alphas):", "for alpha in alphas:", ("test_choice.py",)),
    Break(
        "merit-without-guards",
        "    if not lost <= 0:\n        return -lost\n",
        "",
        ("test_verdict.py",),
    ),
    Break("opening-for-a-win", "not opening.low >= bars.least_opening", "False", ("test_verdict.py",)),
    Break("general-units-apart", "-1 - np.arange(len(distinct))", "np.arange(len(distinct))", ("test_probes.py",)),
    Break("agreement-for-a-win", "known.figure - bar, known.high", "0.0, known.high", ("test_verdict.py",)),
    Break(
        "near-copies-held-out",
        "found.only(~with_near_copy(found.sentences, (sentences[i] for i in train.tolist())))",
        "found",
        ("test_split.py",),
    ),
    Break("ranks-of-equal-ones", "1 + closer + equal / 2", "1 + closer", ("test_measures.py",)),
    Break(
        "units-drawn-whole",
        "place = np.searchsorted(units, part.units)",
        "place = np.arange(len(part.values)) % len(units)",
        ("test_verdict.py",),
    ),
    Break("preset-image-value", '"weight_decay": 5e-4', '"weight_decay": 1e-4', ("test_vision_presets.py",)),
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
    """Paths of test files from their names, each with ``::`` and a test where one is named; none for a missing file."""
    found = []
    for name in names:
        file, *test = name.split("::")
        found += ["::".join([str(path.relative_to(checkout)), *test]) for path in (checkout / "tests").rglob(file)]
    return sorted(found)


def why_not(each: Break, checkout: Path) -> str | None:
    """Why a break cannot be run: its fragment does not stand in exactly one place, or a test file is missing."""
    places = places_of(each.find, checkout)
    if len(places) != 1:
        return f"fragment found in {len(places)} places instead of one"
    missing = [name for name in each.tests if not test_files([name], checkout)]
    return f"no test file {', '.join(missing)}" if missing else None


def run_tests(tests: Sequence[str], checkout: Path) -> tuple[int, str]:
    """Run fast tests up to the first failure: pytest's exit code and the test that failed, if one did."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    environment = os.environ | {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile(
        "w+", encoding="utf-8", errors="replace"
    ) as said:  # a program left behind holds no pipe
        try:
            done = subprocess.run(
                command, cwd=checkout, env=environment, timeout=LONGEST, stdout=said, stderr=subprocess.STDOUT
            )
        except subprocess.TimeoutExpired:
            return -1, f"no end after {LONGEST} s"
        said.seek(0)
        lines = said.read().splitlines()
    failed = [line.removeprefix("FAILED ").partition(" - ")[0] for line in lines if line.startswith("FAILED ")]
    return done.returncode, failed[0] if failed else f"pytest ended with {done.returncode}"


def outcome_of(each: Break, checkout: Path) -> Outcome:
    """Apply a break to a copy, run its tests, put the file back, and say what became of it."""
    begun = time.monotonic()
    if (reason := why_not(each, checkout)) is not None:
        return Outcome(each.name, False, reason, 0.0)
    (place,) = places_of(each.find, checkout)
    before = place.read_bytes()
    try:
        place.write_bytes(before.replace(each.find.encode(), each.replace.encode()))
        code, told = run_tests(test_files(each.tests, checkout), checkout)
    finally:
        place.write_bytes(before)
    return Outcome(each.name, code == FAILED, told, time.monotonic() - begun)


def run(breaks: Sequence[Break], jobs: int) -> bool:
    """Run breaks in so many copies of the checkout at once; whether all are seen, by tests that pass unbroken."""
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copy_checkout(Path(folder) / str(number))
            copies.put(Path(folder) / str(number))

        def work(each: Break) -> Outcome:
            checkout = copies.get()
            try:
                return outcome_of(each, checkout)
            finally:
                copies.put(checkout)

        outcomes = []
        for outcome in pool.map(work, breaks):
            outcomes.append(outcome)
            verdict = "seen    " if outcome.seen else "NOT SEEN"
            print(f"{outcome.name:32} {outcome.seconds:4.0f} s  {verdict}  {outcome.told}", flush=True)
        seen = [outcome for outcome in outcomes if outcome.seen]
        tests = sorted({outcome.told for outcome in seen if "::" in outcome.told})
        code, told = run_tests(tests, copies.get()) if tests else (0, "")
    missed = [outcome.name for outcome in outcomes if not outcome.seen]
    print(f"{len(seen)} of {len(outcomes)} seen" + (f"; not: {', '.join(missed)}" if missed else ""))
    print(f"the {len(tests)} tests that saw them, nothing broken: {'all pass' if code == 0 else told}")
    return not missed and code == 0


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="breaks to run; default all")
    parser.add_argument(
        "--list",
        action="store_true",
        help="print where the breaks and their tests stand, and run nothing",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies side by side (default 1)")
    options = parser.parse_args(argv)
    unknown = set(options.names) - {each.name for each in BREAKS}
    if unknown or options.jobs < 1:
        parser.error(f"no break {', '.join(sorted(unknown))}" if unknown else "--jobs: must be at least 1")
    by_name = {each.name: each for each in BREAKS}
    breaks = [by_name[name] for name in options.names or by_name]
    if options.list:
        reasons = [why_not(each, ROOT) for each in breaks]
        for each, reason in zip(breaks, reasons, strict=True):
            places = " ".join(str(path.relative_to(ROOT)) for path in places_of(each.find, ROOT))
            print(f"{each.name:32}", reason or f"{places}  by {' '.join(test_files(each.tests, ROOT))}")
        return 1 if any(reasons) else 0
    return 0 if run(breaks, options.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
