"""Atomic files, locks, data folders, the hub, tables, text files and words.

May import: cli.
"""
