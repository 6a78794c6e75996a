"""Files that are written completely or not at all, records of prepared data, places of data, the
hub, and tables.

May import: cli.
"""
