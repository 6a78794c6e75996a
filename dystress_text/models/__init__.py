"""Build, load and save sentence-transformers models: packed pass, static, hybrid.

May import: losses, cli, io, training.
"""
