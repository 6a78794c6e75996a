"""Jobs on real, short processes: failures, signals, and a log that another process has locked."""

import os
import signal
import subprocess
import sys
import threading
import time

from dystress_text.errors import UserError
from dystress_text.report.jobs import Job, last_line, open_log, run_jobs

ENVIRONMENT = dict(os.environ)


def command(code):
    return [sys.executable, "-S", "-c", code]


def job(tmp_path, name, *codes):
    steps = tuple(
        (f"step {i}", lambda code=code: code if code is None else command(code)) for i, code in enumerate(codes)
    )
    return Job(name, tmp_path / "logs" / f"{name}.log", steps)


def run(jobs, at_once=2):
    said = []
    outcomes, stopped = run_jobs(jobs, at_once, said.append, ENVIRONMENT)
    return {name: (outcome.state, outcome.reason) for name, outcome in outcomes.items()}, stopped, said


def wait_for(path):
    while not path.exists():
        time.sleep(0.01)


def test_a_failure_stops_its_own_job_alone(tmp_path):
    bad = "import sys; print('reading'); sys.exit('it is broken')"
    jobs = [job(tmp_path, "a", bad, "print(1)"), job(tmp_path, "b", "print(2)", None, "print(3)")]
    outcomes, stopped, said = run(jobs)
    log = tmp_path / "logs" / "a.log"
    assert outcomes["a"] == ("failed", f"step 0: exit code 1, it is broken; log: {log}")
    assert outcomes["b"] == ("done", "")
    assert stopped == 0
    assert (tmp_path / "logs" / "b.log").read_text().count("\n2\n") == 1
    assert "3" in (tmp_path / "logs" / "b.log").read_text().splitlines()
    assert "step 1" not in log.read_text()
    assert [line for line in said if line.endswith("(2 of 2)")]


def test_so_many_at_once_and_no_more(tmp_path):
    code = (
        "import os, time; here = os.environ['HERE']; me = f'{here}/{os.getpid()}'; open(me, 'w').close(); "
        "time.sleep(0.3); print('at once', len(os.listdir(here))); os.remove(me)"
    )
    here = tmp_path / "here"
    here.mkdir()
    jobs = [job(tmp_path, f"job-{i}", code) for i in range(5)]
    outcomes, _ = run_jobs(jobs, 2, lambda _: None, ENVIRONMENT | {"HERE": str(here)})
    counts = [int(last_line(each.log).split()[-1]) for each in jobs]
    assert {outcome.state for outcome in outcomes.values()} == {"done"}
    assert max(counts) == 2


def test_a_signal_of_its_own_is_a_failure(tmp_path):
    outcomes, _, _ = run([job(tmp_path, "a", "import os; os.kill(os.getpid(), 9)")])
    assert outcomes["a"][0] == "failed"
    assert "step 0: signal 9, " in outcomes["a"][1]


def test_a_step_that_cannot_be_made_is_a_failure(tmp_path):
    def refused():
        raise UserError("other settings")

    outcomes, _, _ = run([Job("a", tmp_path / "a.log", (("training", refused),)), job(tmp_path, "b", "print(1)")])
    assert outcomes == {"a": ("failed", "other settings"), "b": ("done", "")}


def test_what_another_process_runs_is_left_alone(tmp_path):
    """The child holds the lock too: it stays locked when the first sweep is gone and its child is not."""
    each = job(tmp_path, "a", "print(1)")
    with open_log(each.log) as log:
        sleeper = subprocess.Popen(["sleep", "60"], stdout=log)
    try:
        assert run([each])[0]["a"] == ("failed", f"another process is at it and writes {each.log}")
    finally:
        sleeper.kill()
        sleeper.wait()
    assert run([each])[0]["a"] == ("done", "")


def test_the_first_signal_lets_them_save_and_begins_no_more(tmp_path):
    saves = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(143))); "
        f"open({str(tmp_path / 'up')!r}, 'w').close(); time.sleep(60)"
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        (tmp_path / "up").unlink(missing_ok=True)
        jobs = [job(tmp_path, "a", saves, "print(1)"), job(tmp_path, "b", "print(2)")]
        before = signal.getsignal(number)
        asked = threading.Thread(target=lambda n=number: (wait_for(tmp_path / "up"), os.kill(os.getpid(), n)))
        asked.start()
        outcomes, stopped, said = run(jobs, at_once=1)
        asked.join()
        assert outcomes == {"a": ("stopped", ""), "b": ("waiting", "")}
        assert stopped == number
        assert last_line(jobs[0].log) == "saved"
        assert said[1].startswith("stopping 1 at work")
        assert signal.getsignal(number) == before


def test_the_second_signal_kills(tmp_path):
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"open({str(tmp_path / 'up')!r}, 'w').close(); time.sleep(60)"
    )

    def twice():
        wait_for(tmp_path / "up")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    asked = threading.Thread(target=twice)
    asked.start()
    begin = time.monotonic()
    outcomes, stopped, _ = run([job(tmp_path, "a", deaf)])
    asked.join()
    assert (outcomes["a"][0], stopped) == ("stopped", signal.SIGINT)
    assert time.monotonic() - begin < 30


def test_the_last_line_is_no_progress_bar(tmp_path):
    log = tmp_path / "log"
    log.write_text("train.py: error: no\n\rtraining:  25%|xx  | 5/20 [00:12<00:36,  2.42s/ steps]\n\n")
    assert last_line(log) == "train.py: error: no"
    log.write_text("")
    assert last_line(log) == "it said nothing"
