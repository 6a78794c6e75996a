"""Run the contestants of a benchmark in turn, and print the table of their rates."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping

import torch

Seconds = Mapping[str, list[float]]


def here() -> torch.device:
    """Return the accelerator if there is one, else the CPU."""
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    return accelerator or torch.device("cpu")


def wait(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def device_name(device: torch.device) -> str:
    """Return the name of the device for the record."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def in_turn(contestants: Mapping[str, Callable[[], float]], repeats: int) -> Seconds:
    """The seconds of each contestant, so many times."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, contestant in contestants.items():
            seconds[name].append(contestant())
    return seconds


def print_rates(title: str, items: int, seconds: Seconds) -> None:
    """Return a table of items a second against the first contestant's, and the record in the last line."""
    print(f"{title}, {items:,} items, {torch.get_num_threads()} threads")
    print(f"{'':22} {'a second':>11} {'first / it':>10}   spread")
    first = next(iter(seconds.values()))
    for name, values in seconds.items():
        ratios = [b / a for a, b in zip(first, values, strict=True)]
        rate = items / statistics.median(values)
        print(
            f"{name:22} {rate:11.1f} {statistics.median(ratios):10.2f}   {min(ratios):.2f} to {max(ratios):.2f}"
        )
    about = {"device": device_name(here()), "torch": torch.__version__}
    print(json.dumps({"seconds": seconds, "items": items, **about}))
