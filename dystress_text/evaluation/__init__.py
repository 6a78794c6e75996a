"""Evaluation: scored pairs, SentEval, search, the lexical baseline, and result lines.

May import: losses, cli, io, training, models.
"""
