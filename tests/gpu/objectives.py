"""Some steps of every objective in each precision, through the training programs: do they run, are losses finite?

python tests/gpu/objectives.py text --corpus sentences.txt [--precisions no bf16 fp16] [--only infonce macl]
python tests/gpu/objectives.py images
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from programs import IMAGES, TEXT, call, losses_of, report, write_rows

from dystress_text import train as text
from dystress_text.training.run_folder import read_record
from vision import train as images
from vision.pretraining.settings import VISION_OBJECTIVES

TEXT_VARIANTS: dict[str, list[str]] = {
    "infonce": [],
    "ntxent": ["--objective", "ntxent"],
    "dcl": ["--objective", "dcl"],
    "dclw": ["--objective", "dclw"],
    "macl": ["--objective", "macl"],
    "supervised": [],  # with a table
    "bidirectional": ["--bidirectional", "yes"],
    "masked language model": ["--do_mlm", "yes"],
    "learned temperature": ["--learn_temperature", "yes"],
    "similarity log": ["--log_similarity", "yes"],
    "gradient cache": ["--grad_cache_chunk", "16"],
    "not packed": ["--packing", "no"],
}
IMAGE_VARIANTS: dict[str, list[str]] = {
    **{name: ["--objective", name] for name in VISION_OBJECTIVES},
    "small crops": ["--objective", "dino", "--small_crops", "2", "--small_crop_size", "12"],
}


def main() -> int:
    """Run them and print the losses; 1 if a run fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["text", "images"])
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precisions", nargs="+", default=["no", "bf16", "fp16"])
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args()
    program, common = (text.main, TEXT) if options.kind == "text" else (images.main, IMAGES)
    variants = TEXT_VARIANTS if options.kind == "text" else IMAGE_VARIANTS
    found: dict[str, dict[str, object]] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or variants:
            words = [
                *common,
                "--max_steps",
                str(options.steps),
                "--train_batch_size",
                str(options.batch),
                "--logging_steps=1",
            ]
            words += variants[name]
            if name == "supervised":
                words += write_rows(options.corpus, Path(folder) / "rows.csv", 3, 20 * options.batch)
            elif options.kind == "text":
                words += ["--train_file", str(options.corpus), "--max_train_samples", str(20 * options.batch)]
            for precision in options.precisions:
                out = Path(folder) / name / precision
                error = call(program, [*words, "--mixed_precision", precision, "--output_dir", str(out)])
                losses = [] if error else losses_of(out)
                skipped = read_record(out).get("skipped_steps", 0)
                if error is None and (None in losses or len(losses) != options.steps) and not skipped:
                    error = "a loss is missing or not finite"
                found.setdefault(name, {})[precision] = error or {"losses": losses, "skipped": skipped}
                failed += [f"{name}, {precision}"] if error else []
                print(f"{name}, {precision}: {error or losses}", flush=True)
    report({"runs": found, "failed": failed})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
