"""The paper's three versions of the shifted minimum (its section on shifted profiles), by their names in its figure.

Version 1 has the minimum in the right half, version 2 in the left half; version 3 is the one-sided cosine, constant
from the plateau's start on. ``a`` and ``b`` are the two shifts of each.
"""

SHIFTED = {"1a": (0.2, 0.6), "1b": (0.4, 0.7), "2a": (-0.2, 0.6), "2b": (-0.4, 0.7)}  # shift and scale
ONE_SIDED = {"3a": 0.2, "3b": 0.4}  # minus the plateau's start
