"""Files that are whole or not there, records of prepared data, where data and caches live, the hub, and tables.

May import: cli.
"""
