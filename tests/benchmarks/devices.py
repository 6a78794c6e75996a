"""Where a benchmark runs: on the accelerator where there is one, else on the CPU."""

from __future__ import annotations

import torch

from dystress_text.training.batches import Batch


def here() -> torch.device:
    """The device of the contestants."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def moved(batch: Batch, device: torch.device) -> Batch:
    """A batch on the device."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def device_name(device: torch.device) -> str:
    """The device for the record."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
