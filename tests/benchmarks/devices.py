"""Run the contestants of a benchmark in turn, and print the table of their rates."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping

import torch

Seconds = Mapping[str, list[float]]


def here() -> torch.device:
    """Return the accelerator if there is one, else the CPU."""
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    return torch.device("cpu")


def wait(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def device_name(device: torch.device) -> str:
    """Return the name of the device for the record."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


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
