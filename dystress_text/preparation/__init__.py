"""Data sets made ready: fetched, checked, unpacked, moved into place; a corpus from running text.

May import: all rooms below simcse, and simcse. Program: ``dystress prepare``.
"""
