"""Copies of a model for other consumers, and the model card.

May import: simcse and all rooms below it. Program: ``dystress export``.
"""
