"""Break the product line by line, and show that the fast tests see it.

    python tests/break_lines.py # all of them, a quarter of an hour on two cores
    python tests/break_lines.py packed-padding        # some of them, by name

Each break replaces one fragment of code in a copy of the checkout and runs the fast tests of one
file, which should fail. A fragment is looked up over the whole product, and a test file by its name
alone, so that files may move. At the end the tests that failed run once more with nothing broken:
one that always fails sees nothing. The exit code is 0 if every break was seen and those tests pass
then.
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
    """Code that stands in one place of the product, what is put there instead, and the test file
    that fails then.
    """

    name: str
    find: str
    replace: str
    test: str  # a file's name


BREAKS = [Break(*row) for row in (
    ("info-nce-formula", "return -F.logsigmoid(positive - negatives)", "return negatives - positive", "test_losses.py"),
    ("dcl-decoupled", "return (2 if self.per_view else 1) * negatives - positive",
     "return -F.logsigmoid(positive - (2 if self.per_view else 1) * negatives)", "test_losses.py"),
    ("dcl-per-view", "return (2 if self.per_view else 1) * negatives", "return negatives", "test_losses.py"),
    ("dclw-weights", "weight = 2 - len(of_all)", "weight = 1 - len(of_all)", "test_losses.py"),
    ("macl-reweighting", "F.logsigmoid(-safe).neg() / torch.sigmoid(safe)",
     "F.logsigmoid(-safe).neg()", "test_losses.py"),
    ("temperature-detached", "similarity.detach() if self.detach_temperature else similarity",
     "similarity", "test_losses.py"),
    ("shifted-cosine-side", "offset.clamp(max=0) if self.shift <= 0",
     "offset.clamp(min=0) if self.shift <= 0", "test_temperature.py"),
    ("queue-oldest-out", "[-len(self.queue) :]", "[: len(self.queue)]", "test_queue.py"),
    ("gather-gradient-sum", "dist.all_reduce(total, group=gather.group)", "pass", "test_gather.py"),
    ("bidirectional", "if self.bidirectional else []", "if False else []", "test_losses.py"),
    ("packed-padding", "query, key, value, mask, rate, scale",
     "query, key, value, None, rate, scale", "test_packed.py"),
    ("head-dropped", "if self.head is not None and self.training",
     "if self.head is not None", "test_encoder.py"),
    ("lora-merged", ".merge_and_unload()", ".unload()", "test_lora.py"),
    ("no-decay-on-biases", '"weight_decay": 0.0},', '"weight_decay": weight_decay},', "test_trainer.py"),
    ("order-of-epochs", "np.random.default_rng([self.seed, epoch])",
     "np.random.default_rng([self.seed, 0])", "test_batches.py"),
    ("best-model-is-the-highest", "value > state.best_metric", "value < state.best_metric", "test_trainer.py"),
    ("chunk-dropout-repeated", "generator.set_rng_state(state)", "pass", "test_gradient_cache.py"),
    ("resume-same-run", "if name not in but and then.get(name) != now.get(name)",
     "if False", "test_checkpoints.py"),
    ("sigterm-saves", "(signal.SIGTERM, signal.SIGINT)\n            if threading",
     "(signal.SIGINT,)\n            if threading", "test_pretrain.py"),
    ("folder-set-aside", "final.rename(aside)", "shutil.rmtree(final)", "test_whole.py"),
    ("senteval-patience", "self.misses[s] >= self.patience", "self.misses[s] > self.patience", "test_classifier.py"),
    ("sts-spearman", "100 * float(stats.spearmanr(tied, scores).statistic)",
     "100 * float(stats.pearsonr(tied, scores).statistic)", "test_sts.py"),
    ("random-pairs-each-once", "np.tri(len(units), k=-1, dtype=bool)",
     "np.tri(len(units), dtype=bool)", "test_random_pairs.py"),
    ("report-deviation", "np.std(figures, ddof=1)", "np.std(figures)", "test_comparison.py"),
    ("corpus-nul", 'if b"\\0" in line:', "if False:", "test_corpus.py"),
    ("archive-hostile", 'filter="data")', 'filter="fully_trusted")', "test_preparation.py"),
    ("token-redacted", 'return _TOKEN.sub("***", text)', "return text", "test_command_line.py"),
    ("knn-weights", "/ TEMPERATURE).exp()", ").exp()", "test_knn.py"),
    ("augment-crop-scale", "height * width * (low + (high - low) * torch.rand(",
     "height * width * (low * torch.rand(", "test_augment.py"),
    ("class-weights", "F.cross_entropy(logits, labels, weight=weights, reduction",
     "F.cross_entropy(logits, labels, reduction", "test_fine_tuning.py"),
    ("picture-crop-key", "np.random.default_rng([*key, row])", "np.random.default_rng(key[:1])", "test_pictures.py"),
)]  # fmt: skip


def places_of(fragment: str, checkout: Path) -> list[Path]:
    """The product's file for each place where a fragment stands."""
    files = (file for part in PRODUCT for file in sorted((checkout / part).rglob("*.py")))
    return [file for file in files for _ in range(file.read_text(encoding="utf-8").count(fragment))]


def tests_of(each: Break, checkout: Path) -> list[str]:
    """The test file of a break with its path; one, or the break is lost."""
    return [str(path.relative_to(checkout)) for path in (checkout / "tests").rglob(each.test)]


def failed(tests: list[str], checkout: Path) -> list[str]:
    """The first fast test that fails; all of them where they do not come to an end."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        *tests,
    ]
    environment = os.environ | {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile(
        "w+", errors="replace"
    ) as said:  # a program left behind holds no pipe
        done = subprocess.run(
            command, cwd=checkout, env=environment, timeout=600, stdout=said, stderr=said
        )
        said.seek(0)
        lines = [line for line in said.read().splitlines() if line.startswith("FAILED ")]
    if done.returncode < 0:  # a signal that nobody caught has ended them
        return tests
    return [line.removeprefix("FAILED ").partition(" - ")[0] for line in lines]


def run(breaks: list[Break], checkout: Path) -> int:
    """Run breaks one after another; 0 if all are seen, by tests that pass unbroken."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(
        git, cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.splitlines():
        if not name.startswith("docs/") and (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    seen: dict[str, list[str]] = {}
    for each in breaks:
        (place,) = places_of(each.find, checkout)
        whole = place.read_text(encoding="utf-8")
        place.write_text(whole.replace(each.find, each.replace), encoding="utf-8")
        seen[each.name] = failed(tests_of(each, checkout), checkout)
        place.write_text(whole, encoding="utf-8")
        print(f"{each.name:32} {(seen[each.name] or ['NOT SEEN'])[0]}", flush=True)
    always = (
        failed(sorted({test for tests in seen.values() for test in tests}), checkout)
        if any(seen.values())
        else []
    )
    print(
        f"{sum(map(bool, seen.values()))} of {len(breaks)} seen; with nothing broken {always or 'all pass'}"
    )
    return 0 if all(seen.values()) and not always else 1


def main() -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[[], *(each.name for each in BREAKS)]
    )
    names = parser.parse_args().names
    chosen = [each for each in BREAKS if each.name in names or not names]
    lost = [
        each.name
        for each in chosen
        if len(places_of(each.find, ROOT)) != 1 or len(tests_of(each, ROOT)) != 1
    ]
    if lost:
        raise SystemExit(
            f"the fragment does not stand in one place, or its test in none: {', '.join(lost)}"
        )
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        return run(chosen, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
