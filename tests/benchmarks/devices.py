"""What the benchmarks share: the device, contestants that take turns, and the table of rates."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

import torch

from dystress_text.io.text_lines import LineCounts, open_text, read_sentences

Seconds = Mapping[str, list[float]]


def here() -> torch.device:
    """Return the accelerator if there is one, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def wait(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def device_name(device: torch.device) -> str:
    """Return the name of the device for the record."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a module's docstring as it is."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def first_sentences(corpus: Path, count: int) -> list[str]:
    """Return the first sentences of a text, one a line, as training reads them."""
    with open_text(corpus) as stream:
        return list(islice(read_sentences(stream, LineCounts()), count))


def cpu_seconds(run: Callable[[], object]) -> float:
    """Call a function and return the CPU seconds of this process."""
    start = time.process_time()
    run()
    return time.process_time() - start


def in_turn(contestants: Mapping[str, Callable[[], float]], repeats: int) -> Seconds:
    """Return the seconds of each contestant, run ``repeats`` times in turn with the others."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, contestant in contestants.items():
            seconds[name].append(contestant())
    return seconds


def print_rates(title: str, items: int, seconds: Seconds) -> None:
    """Print rates relative to the first contestant's, and all measurements as a line of JSON."""
    print(f"{title}, {items:,} items, {torch.get_num_threads()} threads")
    print(f"{'':22} {'a second':>11} {'first / it':>10}   spread")
    first = next(iter(seconds.values()))
    for name, values in seconds.items():
        ratios = [b / a for a, b in zip(first, values, strict=True)]
        rate = items / statistics.median(values)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:22} {rate:11.1f} {statistics.median(ratios):10.2f}   {spread}")
    record = {
        "seconds": seconds,
        "items": items,
        "device": device_name(here()),
        "torch": torch.__version__,
    }
    print(json.dumps(record))
