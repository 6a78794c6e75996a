"""A set of 64-bit hashes in one array."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_FIRST_SLOTS = 2**16
_MAX_LOAD = 0.6


class HashSet:
    """Open addressing with linear probing: 13 to 27 bytes a member, half as much again while it grows.

    Members are hashes that are spread evenly, from 0 to 2^64 - 1; 0 and 1 count as one.
    """

    def __init__(self) -> None:
        self._slots = array("Q", [0]) * _FIRST_SLOTS  # 0 is a free slot; a power of two of them
        self._members = 0

    def __len__(self) -> int:
        return self._members

    def add(self, hashes: Sequence[int]) -> list[int]:
        """Add the hashes in turn; return the positions, in ``hashes``, of those that had been there before."""
        while self._members + len(hashes) > _MAX_LOAD * len(self._slots):
            self._grow()
        slots, mask = self._slots, len(self._slots) - 1
        repeated = []
        for position, value in enumerate(hashes):
            value = value or 1
            slot = value & mask
            while (held := slots[slot]) and held != value:
                slot = (slot + 1) & mask
            if held:
                repeated.append(position)
            else:
                slots[slot] = value
        self._members += len(hashes) - len(repeated)
        return repeated

    def _grow(self) -> None:
        members = self._slots
        self._slots = slots = array("Q", [0]) * (2 * len(members))
        mask = len(slots) - 1
        for value in members:
            if value:
                slot = value & mask
                while slots[slot]:
                    slot = (slot + 1) & mask
                slots[slot] = value
