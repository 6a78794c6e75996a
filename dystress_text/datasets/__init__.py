"""Data sets made ready: fetched, checked, unpacked, moved into place.

May import: all rooms below simcse, and simcse. Programs: ``dystress prepare``, and for images
``vision/prepare.py``.
"""
