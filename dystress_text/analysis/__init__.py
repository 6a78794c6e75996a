"""Finished runs: reading, comparison, tables, pages, curves and audits.

Imports ``evaluation`` and the layers below it. Programs: ``dystress report``, ``dystress audit``.
"""
