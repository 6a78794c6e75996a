"""Training of any task: the loop, devices and processes, checkpoints, the run folder, options.

This room knows neither text nor images. Imports only ``losses``, ``cli``, ``io`` and ``errors``
from this package.
"""
