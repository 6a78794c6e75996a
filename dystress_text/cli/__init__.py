"""Options, presets, progress bars, extras, text tables and one-line errors of all programs.

Imports ``losses``, for the loss of a preset, and ``errors``.
"""
