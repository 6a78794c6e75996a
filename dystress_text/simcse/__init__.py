"""The recipe: its task, training text, options and presets with the paper's figures, and SimCSE's own flags.

May import: core, cli, files, training, encoders, evaluation.
"""
