"""Finished runs: reading, comparison, tables, pages, curves and audits.

May import: finetuning and what it may import. Program: ``dystress report``.
"""
