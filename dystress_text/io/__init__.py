"""Atomic files, locks, data folders, the hub, tables and text files.

May import: cli.
"""
