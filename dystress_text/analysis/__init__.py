"""Finished runs, read and compared: statistics, tables, pages, curves, drawings.

May import: finetuning and what it may import. Program: ``dystress report``.
"""
