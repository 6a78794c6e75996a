"""Runs that are killed, stopped, left by their launcher, or out of disk space."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from accelerate import Accelerator
from processes import finish, free_port, run_main, start, wait_for
from trainer_cases import before_step, interrupt, logged, outcome

from dystress_text.programs.train import main
from dystress_text.training.accelerator import StopSignals
from dystress_text.training.run_folder import checkpoint_folders

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("DYSTRESS_KILLS", "6"))
RUNS = 2


@pytest.fixture
def saving(tiny_run):
    """Return a function that makes the arguments of a run with many checkpoints, in a folder."""

    def arguments(folder, *more):
        every = ["--save_steps=2", "--keep_checkpoints", "--logging_steps=3", "--eval_steps=8"]
        return [*tiny_run, f"--output_dir={folder}", *every, *more]

    return arguments


@pytest.mark.slow(20)
def test_killed_runs_end_as_an_uninterrupted_one(saving, tmp_path):
    """Kill at random moments after a new checkpoint."""
    errors = tmp_path / "errors"
    whole = saving(tmp_path / "whole", "--max_steps=24")
    assert finish(start(whole, errors)) == 0, errors.read_text()
    expected = outcome(tmp_path / "whole")
    chance = random.Random(7)
    for number in range(RUNS):
        out = tmp_path / f"killed-{number}"
        arguments = saving(out, "--max_steps=24", "--resume_from_checkpoint=auto")
        for _ in range(KILLS // RUNS):
            before = checkpoint_folders(out)[:1]
            process = start(arguments, errors)
            while process.is_alive() and checkpoint_folders(out)[:1] == before:
                time.sleep(0.01)
            process.join(0.2 * chance.random())
            process.kill()
            process.join()
        assert finish(start(arguments, errors)) == 0, errors.read_text()
        assert outcome(out) == expected
        assert not list(out.glob(".*"))


def test_signal_saves_a_checkpoint(tiny_run, tmp_path):
    assert main([*tiny_run, "--eval_steps=4", f"--output_dir={tmp_path / 'whole'}"]) == 0
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        out = tmp_path / str(code)
        arguments = [*tiny_run, "--eval_steps=4", f"--output_dir={out}"]
        with before_step(3, partial(signal.raise_signal, number)):
            assert main(arguments) == code
        assert [folder.name for folder in checkpoint_folders(out)] == ["checkpoint-3"]
        assert main([*arguments, "--resume_from_checkpoint"]) == 0
        assert outcome(out) == outcome(tmp_path / "whole")


def wait_for_signals(ready, errors):
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    with StopSignals(Accelerator(cpu=True)):
        Path(ready).touch()
        while True:
            time.sleep(0.1)


def test_second_ctrl_c_ends_at_once(tmp_path):
    ready = tmp_path / "ready"
    errors = tmp_path / "errors"
    process = start(str(ready), errors, wait_for_signals)
    wait_for(ready.exists, process)
    os.kill(process.pid, signal.SIGINT)
    wait_for(lambda: "Ctrl-C" in errors.read_text(), process)
    # a launcher forwards the first Ctrl-C a moment later
    for number, seconds in ((signal.SIGINT, 1.1), (signal.SIGTERM, 0.2)):
        os.kill(process.pid, number)
        time.sleep(seconds)
        assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    assert finish(process, 5) == 130


@contextlib.contextmanager
def launched(arguments):
    """Start torchrun with two processes; at the end, kill all that it started."""
    launcher = "torch.distributed.run --nproc_per_node=2 --monitor-interval=300"
    program = [str(ROOT / "dystress_text" / "train.py"), *arguments]
    process = subprocess.Popen(
        [sys.executable, "-m", *launcher.split(), f"--master_port={free_port()}", *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow(20)
def test_dead_process_ends_the_others_with_the_cause(tiny_run, tmp_path):
    out = tmp_path / "out"
    endless = ["--max_steps=100000", "--eval_steps=0", "--logging_steps=1"]
    with launched([*tiny_run, f"--output_dir={out}", *endless]) as process:
        wait_for(lambda: logged(out) >= 2)
        workers = {}
        for child in psutil.Process(process.pid).children():
            rank = child.environ().get("RANK")
            if rank is not None:
                workers[rank] = child
        workers["1"].kill()
        # it ends by itself: the launcher looks only every five minutes
        wait_for(lambda: workers["0"].status() == psutil.STATUS_ZOMBIE)
        process.kill()
        printed = process.stdout.read()
    assert "another process of this run" in printed
    assert "Traceback" not in printed


def run_limited(arguments, errors):
    """Run the program in a new process where no file may be larger than 60,000 bytes."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    run_main(arguments, errors)


def test_full_disk_leaves_the_last_checkpoint(saving, tmp_path):
    pytest.importorskip("resource")
    out = tmp_path / "out"
    errors = tmp_path / "errors"
    assert main(saving(out)) == 0
    interrupt(out)
    shutil.rmtree(out / "checkpoint-4")
    before = {path: path.read_bytes() for path in (out / "checkpoint-2").iterdir()}
    arguments = saving(out, "--resume_from_checkpoint")
    assert finish(start(arguments, errors, run_limited)) == 2
    printed = errors.read_text()
    assert "Traceback" not in printed
    assert printed.strip().splitlines()[-1].startswith("dystress train: error: after step ")
    assert {path: path.read_bytes() for path in (out / "checkpoint-2").iterdir()} == before
    assert main(arguments) == 0
