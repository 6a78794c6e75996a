"""Train any task: the loop, devices and processes, checkpoints, the run folder, and options.

Knows no text and no image. May import: losses, cli, io.
"""
