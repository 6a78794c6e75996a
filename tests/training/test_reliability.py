"""What docs/reliability.md promises, on real processes: killed, told to stop, left by their
launcher, out of space.
"""

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from accelerate import Accelerator
from processes import finish, free_port, run_main, start, wait_for
from trainer_cases import interrupt, logged, outcome

from dystress_text.programs.train import main
from dystress_text.training.accelerator import StopSignals
from dystress_text.training.run_folder import checkpoint_folders

ROOT = Path(__file__).resolve().parents[2]
KILLS, RUNS, STEPS = int(os.environ.get("DYSTRESS_KILLS", "6")), 2, 24


def with_output(flags, folder, *more):
    return [
        *(flag for flag in flags if not flag.startswith(("--output_dir", "--max_steps"))),
        f"--output_dir={folder}",
        f"--max_steps={STEPS}",
        "--save_steps=2",
        "--logging_steps=3",
        "--eval_steps=8",
        *more,
    ]


@pytest.mark.slow(20)
def test_runs_that_are_killed_end_as_if_nothing_had_happened(flags, tmp_path):
    """At random moments after a new checkpoint."""
    errors = tmp_path / "errors"
    assert finish(start(with_output(flags, tmp_path / "whole"), errors)) == 0, errors.read_text()
    expected, chance = outcome(tmp_path / "whole"), random.Random(7)
    for number in range(RUNS):
        out = tmp_path / f"killed-{number}"
        arguments = with_output(flags, out, "--resume_from_checkpoint=auto")
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_the_run_goes_on_from_there(number, code, flags, tmp_path):
    out, errors = tmp_path / "out", tmp_path / "errors"
    endless = with_output(flags, out, "--save_steps=0", "--eval_steps=7")
    process = start(endless, errors)
    wait_for(lambda: logged(out) >= 3, process)
    os.kill(process.pid, number)
    assert finish(process) == code, errors.read_text()
    [checkpoint] = checkpoint_folders(out)
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    said = errors.read_text().splitlines()[-1]
    assert said == (
        f"dystress train: stopped by {number.name} after step {step} of 24; "
        "--resume_from_checkpoint goes on from there"
    )
    assert finish(start([*endless, "--resume_from_checkpoint"], errors)) == 0, errors.read_text()
    assert f"going on after step {step}" in errors.read_text()
    assert (
        finish(
            start(
                with_output(flags, tmp_path / "whole", "--save_steps=0", "--eval_steps=7"), errors
            )
        )
        == 0
    )
    assert outcome(out) == outcome(tmp_path / "whole")


def wait_for_signals(ready, errors):
    """In a new process."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    with StopSignals(Accelerator(cpu=True)):
        Path(ready).touch()
        while True:
            time.sleep(0.1)


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    ready, errors = tmp_path / "ready", tmp_path / "errors"
    process = start(str(ready), errors, wait_for_signals)
    wait_for(ready.exists, process)
    os.kill(process.pid, signal.SIGINT)
    wait_for(lambda: "Ctrl-C once more stops at once" in errors.read_text(), process)
    for number, seconds in (
        (signal.SIGINT, 1.1),
        (signal.SIGTERM, 0.2),
    ):  # the first is a launcher's echo
        os.kill(process.pid, number)
        time.sleep(seconds)
        assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    assert finish(process, 5) == 130


@contextlib.contextmanager
def launched(arguments, *launcher):
    """A launcher's process, which is gone in the end with all that it has started."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    process = subprocess.Popen(
        [sys.executable, "-m", *launcher, str(ROOT / "dystress_text" / "train.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def workers(process):
    """The training processes below a launcher."""
    found = psutil.Process(process.pid).children(recursive=True)
    return [child for child in found if any(word.endswith("train.py") for word in child.cmdline())]


ENDLESS = ["--max_steps=100000", "--save_steps=0", "--eval_steps=0", "--logging_steps=1"]
TORCHRUN = ("torch.distributed.run", "--nproc_per_node=2")


@pytest.mark.slow(20)
def test_one_dead_process_ends_the_others_with_the_cause(flags, tmp_path):
    arguments = with_output(flags, tmp_path / "out", *ENDLESS)
    with launched(
        arguments, *TORCHRUN, f"--master_port={free_port()}", "--monitor-interval=300"
    ) as process:
        wait_for(lambda: logged(tmp_path / "out") >= 2)
        first, second = workers(process)
        victim = second if second.environ()["RANK"] == "1" else first
        other = first if victim is second else second
        victim.kill()
        wait_for(
            lambda: other.status() == psutil.STATUS_ZOMBIE
        )  # by itself: the launcher looks every five minutes
        process.kill()
        said = process.stdout.read()
    assert "another process of this run is gone" in said
    assert "Traceback" not in said


def run_limited(arguments, errors):
    """In a new process: the program where no file may be larger than 60,000 bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    run_main(arguments, errors)


def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint(flags, tmp_path):
    """By a limit on the size of each file."""
    out, errors = tmp_path / "out", tmp_path / "errors"
    assert main(with_output(flags, out, "--max_steps=6")) == 0
    interrupt(out)
    shutil.rmtree(out / "checkpoint-4")
    before = {path: path.read_bytes() for path in (out / "checkpoint-2").iterdir()}
    arguments = with_output(flags, out, "--max_steps=6", "--resume_from_checkpoint")
    assert finish(start(arguments, errors, run_limited)) == 2
    said = errors.read_text()
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert last.startswith("dystress train: error: after step ")
    assert f"in {str(out)!r}: a file cannot be read or written" in last
    assert {path: path.read_bytes() for path in (out / "checkpoint-2").iterdir()} == before
    assert main(arguments) == 0


@pytest.mark.slow(20)
def test_a_run_says_that_the_disk_is_full_wherever_it_fills(flags, tmp_path, small_disk):
    """Before the first step, at a checkpoint, at the model; and goes on where there is space."""
    codes, disk = [], small_disk(3_000_000)
    for free in range(30_000, 900_000, 70_000):
        out = disk / "out"
        taken = shutil.disk_usage(disk).free - free
        (disk / "taken").write_bytes(bytes(taken))
        errors = tmp_path / f"errors-{free}"
        arguments = with_output(flags, out, "--max_steps=6")
        codes.append(finish(start(arguments, errors)))
        said = errors.read_text()
        if codes[-1]:
            last = said.strip().splitlines()[-1]
            assert last.startswith("dystress train: error: "), said
            assert "No space left on device" in last
        (disk / "taken").unlink()
        shutil.rmtree(out, ignore_errors=True)
    assert (codes[0], codes[-1]) == (2, 0)
