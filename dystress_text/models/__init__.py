"""Sentence-transformers models: loading, building, saving, and faster passes.

Imports only ``losses``, ``cli``, ``io``, ``training`` and ``errors`` from this package.
"""
