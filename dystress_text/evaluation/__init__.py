"""Evaluation: scored pairs, SentEval, search, the lexical baseline, and result lines.

Imports only ``models`` and the rooms that it imports.
"""
