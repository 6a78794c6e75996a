"""The programs for a machine with a GPU run small on the CPU."""

import json
import runpy
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SMALL = "--steps 2 --batch 6"
CHECKS, SPEED = (
    "tests/gpu/checks.py --corpus {corpus}",
    "tests/benchmarks/training_speed.py --corpus {corpus}",
)
COMMANDS = {
    "dropout": f"{CHECKS} dropout --batch 4",
    "equal": f"{CHECKS} equal {SMALL}",
    "text": f"{CHECKS} objectives text {SMALL} --only macl",
    "images": f"{CHECKS} objectives images {SMALL} --only dino",
    "killed": f"{CHECKS} killed text --steps 8 --batch 6",
    "speed": f"{SPEED} {SMALL} --repeats 1 --layers 1 --width 32 --vocabulary 9000",
    "loss": "tests/benchmarks/loss_core.py --sizes 8 --dim 8 --repeats 1 --objectives NT-Xent --temperatures cosine",
}


@pytest.mark.slow(20)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_program_runs_small_on_the_cpu(name, text_file, monkeypatch, capsys):
    """In this process, which has the imports behind it."""
    program, *words = shlex.split(COMMANDS[name].format(corpus=text_file))
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.syspath_prepend((ROOT / program).parent)
    monkeypatch.setattr(sys, "argv", [program, *words])
    code = None
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        code = end.code
    assert not code, capsys.readouterr()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert name != "killed" or result["weights"]
