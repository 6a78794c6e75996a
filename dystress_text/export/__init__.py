"""Copy models for other software, and write the model card.

May import: finetuning and what it may import. Program: ``dystress export``.
"""
