"""Build, load and save sentence-transformers models: packed pass, static, hybrid, LoRA.

May import: losses, cli, io, training.
"""
