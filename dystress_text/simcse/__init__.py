"""The text recipe: task, training text, options, presets with the paper's figures, and SimCSE's own
flags.

May import: core, cli, files, training, encoders, evaluation.
"""
