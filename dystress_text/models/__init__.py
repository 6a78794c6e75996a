"""Sentence-transformers models in and out: loading, building, the packed forward pass, static and
hybrid models, LoRA, the masked language model, saving.

May import: core, cli, files, training.
"""
