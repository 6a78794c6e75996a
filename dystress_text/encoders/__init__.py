"""Sentence encoders: the network, its packed forward pass, LoRA, the masked language model, and how
they are saved.

May import: core, cli, files, training.
"""
