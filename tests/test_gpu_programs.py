"""The programs for a machine with a GPU, on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
GPU = ROOT / "tests" / "gpu"
ROWS = [
    "environment", "smoke", "equal", "equal-cls", "killed-fp16", "objectives-text", "speed", "loss",
    "killed-text", "killed-images", "objectives-images",
]  # fmt: skip


def lines_of(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow(300)
def test_every_row_runs_small_on_the_cpu(tmp_path):
    env = {**os.environ, "SMALL": "1", "OUT": str(tmp_path), "SECONDS_LEFT": "880"}
    ended = subprocess.run([GPU / "lease.sh"], env={**env, "PYTHON": sys.executable}, check=False)
    rows = lines_of(tmp_path)
    assert [(row["row"], row["rc"]) for row in rows] == [(name, 0) for name in ROWS], rows
    results = {row["row"]: row["results"] for row in rows}
    assert all(results.values())
    assert len(results["objectives-text"]) == len(results["objectives-images"]) == 3  # with the sum
    assert results["killed-fp16"][-1]["weights"]
    assert ended.returncode == 0


@pytest.mark.parametrize(
    ("ending", "code"), [("time.sleep(99)", 124), ("os.kill(os.getpid(), 9)", -9)]
)
def test_a_row_that_is_ended_leaves_its_line_with_what_it_had(ending, code, tmp_path):
    program = (
        f"import os, time; print('{{\"ms\": 3}}', flush=True); print('{{\"m', flush=True); {ending}"
    )
    command = [sys.executable, GPU / "row.py", "one", "2", tmp_path, sys.executable, "-c", program]
    assert subprocess.run(command, check=False).returncode in (124, 137)
    (row,) = lines_of(tmp_path)
    assert (row["row"], row["rc"], row["results"]) == ("one", code, [{"ms": 3}])
    assert row["last"][-1] == '{"m'


def test_a_form_that_fails_or_does_not_fit_loses_no_row_of_the_loss(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "tests" / "benchmarks")
    import loss_core

    def pseudocode(*_):
        def fail(*_):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

        return fail

    monkeypatch.setattr(loss_core, "pseudocode", pseudocode)
    monkeypatch.setattr(loss_core, "peak_alone", lambda *_: 1)
    monkeypatch.setattr(loss_core, "memory", lambda: 6 * 4 * 8**2)  # InfoNCE's of 8 pairs
    monkeypatch.setattr(
        sys, "argv", ["loss_core", "--sizes", "8", "--dim", "8", "--temperatures", "cosine"]
    )
    loss_core.main()
    _, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    found = [next(key for key in ("ms", "error", "skipped") if key in row) for row in rows]
    assert found == ["ms", "ms", "error", "skipped", "ms", "skipped"]
