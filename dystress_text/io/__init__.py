"""Atomic writes, locks, folders of data, the hub, tables, text files and words.

Imports only ``cli`` and ``errors`` from this package.
"""
