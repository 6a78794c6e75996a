"""Copy models for other software, and write the model card.

May import: finetuning and all rooms below it. Program: ``dystress export``.
"""
