"""The loop for any task: trainer, devices and processes, checkpoints, the folder of a run, options
of loop and loss.

Knows no text and no image. May import: core, cli, files.
"""
