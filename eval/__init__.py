"""Evaluation of sentence encoders: SentEval's protocol, geometry, tables."""
