"""torch's random states: that of the CPU and that of the device that trains."""

from __future__ import annotations

import torch
from torch import Tensor


def random_states(device: torch.device) -> list[Tensor]:
    """The state of the CPU's generator and, for another device, that of its own."""
    states = [torch.get_rng_state()]
    if device.type == "cpu":
        return states
    state: Tensor = torch.get_device_module(device).get_rng_state(device)
    return [*states, state]


def restore_random_states(states: list[Tensor], device: torch.device) -> None:
    """Set what :func:`random_states` gave."""
    torch.set_rng_state(states[0])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[1], device)
