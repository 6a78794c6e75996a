"""Finished runs, read and compared: statistics, tables, pages, curves, drawings; and the sweep that
makes runs.

May import: simcse and all rooms below it. Program: ``dystress report``.
"""
