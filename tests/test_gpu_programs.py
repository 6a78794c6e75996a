"""The programs for a machine with a GPU, on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]
GPU = ROOT / "tests" / "gpu"
ROWS = """
environment smoke step equal equal-cls killed-fp16 dropout objectives-text speed loss killed-text
killed-images objectives-images
"""


def lines_of(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow(300)
def test_every_row_runs_small_on_the_cpu(tmp_path):
    env = {**os.environ, "SMALL": "1", "OUT": str(tmp_path), "SECONDS_LEFT": "880"}
    ended = subprocess.run([GPU / "lease.sh"], env={**env, "PYTHON": sys.executable}, check=False)
    rows = lines_of(tmp_path)
    assert [row["row"] for row in rows] == ROWS.split()
    assert [row for row in rows if row["rc"] != 0] == []
    results = {row["row"]: row["results"] for row in rows}
    assert all(results.values())
    assert len(results["objectives-text"]) == 3  # with the sum
    assert len(results["objectives-images"]) == 3
    assert results["killed-fp16"][-1]["weights"]
    assert results["step"][0]["ms"] > 0
    assert ended.returncode == 0


@pytest.mark.parametrize(
    ("ending", "code"), [("time.sleep(99)", 124), ("os.kill(os.getpid(), 9)", -9)]
)
def test_a_killed_row_keeps_its_results(ending, code, tmp_path):
    program = (
        f"import os, time; print('{{\"ms\": 3}}', flush=True); print('{{\"m', flush=True); {ending}"
    )
    command = [sys.executable, GPU / "row.py", "one", "2", tmp_path, sys.executable, "-c", program]
    assert subprocess.run(command, check=False).returncode in (124, 137)
    (row,) = lines_of(tmp_path)
    assert row["row"] == "one"
    assert row["rc"] == code
    assert row["results"] == [{"ms": 3}]
    assert row["last"][-1] == '{"m'


def test_the_busy_share_of_overlapping_kernels(monkeypatch):
    """Overlaps count once, annotations never; five steps of 0.01 ms."""
    monkeypatch.syspath_prepend(GPU)
    import step

    def event(start, end, device="CUDA", annotation=False):
        return SimpleNamespace(
            name="k",
            device_type=SimpleNamespace(name=device),
            is_user_annotation=annotation,
            time_range=SimpleNamespace(start=start, end=end),
        )

    events = [event(10, 30), event(0, 20), event(0, 90, annotation=True), event(0, 90, "CPU")]
    row = step.summary_of(events, ms=0.01)
    assert row["busy_share"] == pytest.approx(30 / 50)
    assert row["kernels"] == 2 / 5
    assert row["longest"] == {"k": {"calls": 2 / 5, "ms": pytest.approx(0.008)}}
