"""Arguments, progress bars, optional packages, text tables and one-line errors of all programs.

Imports only ``errors`` from this package.
"""
