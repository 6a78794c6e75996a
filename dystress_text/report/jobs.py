"""Programs run as processes, several at once: a failure stops only its own job, a signal stops all in good order."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

from dystress_text.errors import UserError

_POLL = 0.1  # seconds between looks at the processes
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Command = list[str]


@dataclass(frozen=True)
class Job:
    """Commands, one after another.

    Attributes:
        name: what messages call it.
        log: the file that takes what the commands print; locked as long as one of them runs.
        steps: a word for each command and what gives the command when its turn comes, None where nothing is to do.
    """

    name: str
    log: Path
    steps: tuple[tuple[str, Callable[[], Command | None]], ...]


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        state: ``done``, ``failed``, ``stopped`` by the signal that stopped all, or ``waiting``, never begun.
        reason: of a failure; else empty.
    """

    state: str
    reason: str = ""


@dataclass
class _Running:
    job: Job
    log: IO[str]
    steps: list[tuple[str, Callable[[], Command | None]]]
    process: subprocess.Popen[bytes] | None = None
    step: str = ""


class _Stop:
    """Notes signals while it is entered; those that were ignored before (nohup) stay so."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> _Stop:
        for number in STOPS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, lambda number, _: self.received.append(number))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def run_jobs(
    jobs: Iterable[Job], at_once: int, say: Callable[[str], None], environment: Mapping[str, str]
) -> tuple[dict[str, Outcome], int]:
    """Run all jobs, so many at once, and return how each ended and the signal that stopped them, 0 for none.

    The first SIGINT, SIGTERM or SIGHUP is passed on to the processes as SIGTERM, and they are waited for; a second one
    kills them.

    Args:
        jobs: in order.
        at_once: the most processes at one time.
        say: takes a line for each step.
        environment: of the processes.
    """
    waiting = list(jobs)
    outcomes = {job.name: Outcome("waiting") for job in waiting}
    running: list[_Running] = []
    obeyed = 0

    def end(job: Job, outcome: Outcome) -> None:
        outcomes[job.name] = outcome
        over = sum(each.state != "waiting" for each in outcomes.values())
        reason = f": {outcome.reason}" if outcome.reason else ""
        say(f"{job.name}: {outcome.state}{reason} ({over} of {len(outcomes)})")

    with _Stop() as stop:
        while running or (waiting and not stop.received):
            while waiting and len(running) < at_once and not stop.received:
                job = waiting.pop(0)
                begun = _begin(job)
                if begun is not None:
                    running.append(begun)
                else:
                    end(job, Outcome("failed", f"another process is at it and writes {job.log}"))
            if len(stop.received) > obeyed:
                obeyed = len(stop.received)
                _end(running, obeyed, say)
            for each in list(running):
                outcome = _advance(each, bool(stop.received), say, environment)
                if outcome is not None:
                    each.log.close()
                    running.remove(each)
                    end(each.job, outcome)
            time.sleep(_POLL if running else 0)
    return outcomes, stop.received[0] if stop.received else 0


def _begin(job: Job) -> _Running | None:
    """Open and lock the log; the processes inherit the lock, so it outlives a sweep that is killed."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    log = job.log.open("a", encoding="utf-8")
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        log.close()
        return None
    return _Running(job, log, list(job.steps))


def _advance(
    each: _Running, stopping: bool, say: Callable[[str], None], environment: Mapping[str, str]
) -> Outcome | None:
    """Look at a job's process and start its next one; the outcome if the job has ended."""
    name = each.job.name
    if each.process is not None:
        code = each.process.poll()
        if code is None:
            return None
        each.process = None
        if code != 0:
            if stopping:
                return Outcome("stopped")
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return Outcome("failed", f"{each.step}: {how}, {last_line(each.job.log)}; log: {each.job.log}")
    while each.steps:
        if stopping:
            return Outcome("stopped")
        each.step, make = each.steps.pop(0)
        try:
            command = make()
        except UserError as error:
            return Outcome("failed", str(error))
        if command is not None:
            each.log.write(f"$ {shlex.join(command)}\n")
            each.log.flush()
            each.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=each.log, stderr=subprocess.STDOUT, env=dict(environment),
                start_new_session=True,  # a Ctrl-C at the terminal comes from here, once
            )  # fmt: skip
            say(f"{name}: {each.step}")
            return None
    return Outcome("done")


def _end(running: list[_Running], signals: int, say: Callable[[str], None]) -> None:
    alive = [each.process for each in running if each.process is not None and each.process.poll() is None]
    if signals == 1:
        say(f"stopping {len(alive)} at work, which save what they have; once more kills them")
    for process in alive:
        if signals == 1:
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGKILL)


def last_line(log: Path) -> str:
    """The last line that says something; a progress bar's last state is none."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").splitlines()
    told = [line.strip() for line in lines if line.strip() and "it/s" not in line and "%|" not in line]
    return told[-1] if told else "it said nothing"
