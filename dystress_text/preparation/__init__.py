"""Data sets made ready: fetched, checked, unpacked, moved into place.

May import: all rooms below simcse, and simcse. Program: ``dystress prepare``.
"""
