"""Finished runs, read and compared: statistics, tables, pages, curves, drawings.

May import: simcse and all rooms below it. Program: ``dystress report``.
"""
