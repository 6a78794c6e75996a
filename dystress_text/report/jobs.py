"""Programs run as processes, several at once: a failure ends only its own job, a signal ends all in good order."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dystress_text.errors import UserError

_POLL = 0.1  # seconds between looks for a signal
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
class _Pool:
    """What the threads of the jobs share; ``lock`` is held to start a process, to stop all, and to say something."""

    say: Callable[[str], None]
    environment: Mapping[str, str]
    signals: list[int] = field(default_factory=list)
    alive: set[subprocess.Popen[bytes]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def stop(self, kill: bool) -> None:
        """End the processes: ask them to, or kill them with their children."""
        with self.lock:
            if not kill:
                self.say(f"stopping {len(self.alive)} at work, which save what they have; once more kills them")
            for process in self.alive:
                if kill:
                    with suppress(ProcessLookupError):  # it has just ended
                        os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.terminate()

    def run(self, job: Job) -> Outcome:
        """Run a job's commands in the thread at hand."""
        if self.signals:
            return Outcome("waiting")
        with open_log(job.log) as log:
            if log is None:
                return Outcome("failed", f"another process is at it and writes {job.log}")
            for step, make in job.steps:
                try:
                    command = make()
                except UserError as error:
                    return Outcome("failed", str(error))
                code = 0 if command is None else self._wait(command, log, f"{job.name}: {step}")
                if code is None or (code and self.signals):
                    return Outcome("stopped")
                if code:
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    return Outcome("failed", f"{step}: {how}, {last_line(job.log)}; log: {job.log}")
        return Outcome("done")

    def _wait(self, command: Command, log: IO[str], line: str) -> int | None:
        """The exit code of a command; None where a signal came before it began."""
        log.write(f"$ {shlex.join(command)}\n")
        log.flush()
        with self.lock:  # what starts before a signal is seen is among those that are stopped
            if self.signals:
                return None
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=dict(self.environment),
                start_new_session=True,  # a Ctrl-C at the terminal comes from here, once
            )  # fmt: skip
            self.alive.add(process)
            self.say(line)
        code = process.wait()
        with self.lock:
            self.alive.remove(process)
        return code


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
    pool, waiting = _Pool(say, environment), list(jobs)
    outcomes = {job.name: Outcome("waiting") for job in waiting}

    def work(job: Job) -> None:
        outcome = pool.run(job)
        with pool.lock:
            outcomes[job.name] = outcome
            over = sum(each.state != "waiting" for each in outcomes.values())
            if outcome.state != "waiting":
                reason = f": {outcome.reason}" if outcome.reason else ""
                say(f"{job.name}: {outcome.state}{reason} ({over} of {len(outcomes)})")

    with _noted(pool.signals), ThreadPoolExecutor(at_once) as threads:
        futures = [threads.submit(work, job) for job in waiting]
        obeyed = 0
        while wait(futures, timeout=_POLL).not_done:
            if len(pool.signals) > obeyed:
                obeyed = len(pool.signals)
                pool.stop(kill=obeyed > 1)
        for future in futures:
            future.result()
    return outcomes, pool.signals[0] if pool.signals else 0


@contextmanager
def _noted(signals: list[int]) -> Iterator[None]:
    """Add each signal of :data:`STOPS` to a list; those that were ignored before (nohup) stay so."""
    caught = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _: signals.append(number)) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def open_log(file: Path) -> Iterator[IO[str] | None]:
    """A log opened and locked; None where another process holds the lock.

    The lock is of the open file (flock), which the processes inherit as their output: it outlives a sweep that is
    killed. FileLock cannot do that.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
        else:
            yield log


def last_line(log: Path) -> str:
    """The last line that is not empty and not the state of a progress bar."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").splitlines()
    told = [line.strip() for line in lines if line.strip() and "it/s" not in line and "%|" not in line]
    return told[-1] if told else "it said nothing"
