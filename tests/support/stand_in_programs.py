"""Stand-ins for the programs that a sweep starts, which take no time and write the same files.

Beside the folder of the sweep lie ``records.json``, the record of each run by its folder, and perhaps
``wait``: then training waits for a signal.
"""

import json
import signal
import sys
import time
from argparse import ArgumentParser
from pathlib import Path


def train(arguments):
    """Train a run; fail with seed 9."""
    options = dict(argument[2:].split("=", 1) for argument in arguments if "=" in argument)
    assert options["resume_from_checkpoint"] == "auto"
    folder = Path(options["output_dir"])
    beside = folder.parent.parent
    record = json.loads((beside / "records.json").read_text())[folder.name]
    record["resumed"] = folder.exists()
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(record))
    if options["seed"] == "9":
        sys.exit("train.py: error: seed 9 is not liked")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("train.py: stopped by SIGTERM"))
    if (beside / "wait").exists():
        (folder / "waiting").touch()
        time.sleep(60)
    record["state"] = "finished"
    record["trained"] = {"sts_b_dev_spearman": 1.0}
    (folder / "run.json").write_text(json.dumps(record))


def evaluate(arguments):
    """Append a result for each task, and the call itself to ``calls.jsonl``."""
    parser = ArgumentParser()
    for name in ("--model", "--suite", "--output"):
        parser.add_argument(name)
    parser.add_argument("--tasks", nargs="+")
    options = parser.parse_args(arguments)
    folder = Path(options.output).parent if options.output else Path(options.model)
    folder.mkdir(exist_ok=True)
    append(folder / "calls.jsonl", options.tasks)
    for task in options.tasks:
        append(folder / "results.jsonl", result(options, task))


def result(options, task):
    """The line of a result: runs of the preset paper are two points better."""
    figure = 72.0 if "paper" in options.model else 70.0
    line = {
        "model": options.model,
        "weights": "w",
        "task": task,
        "data": "d",
        "settings": {"mode": "test", "dtype": "fp32", "pooler_type": None},
    }
    if task.startswith(("STS", "SICK")):
        line["group"] = f"{options.suite}/sts"
        line["figures"] = {"spearman": figure}
        line["lexical"] = {"spearman": 69.0}
    else:
        line["group"] = f"{options.suite}/transfer"
        line["figures"] = {"accuracy": figure}
    return line


def append(file, value):
    with file.open("a") as lines:
        lines.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    program, *rest = sys.argv[1:]
    {"train": train, "evaluate": evaluate}[program](rest)
