"""The text recipe: task, training text, options, and presets with the paper's figures.

May import: core, cli, files, training, encoders, evaluation.
"""
