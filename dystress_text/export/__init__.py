"""Copies of a model for other software, and the model card.

May import: finetuning and what it may import. Program: ``dystress export``.
"""
