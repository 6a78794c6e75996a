"""Preparation of data sets: download, verify, and move into place.

Programs: ``dystress prepare``, and for images ``vision/prepare.py``.
"""
