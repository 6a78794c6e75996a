"""Copies of a model for other software, and the model card.

Imports ``evaluation`` and the layers below it. Program: ``dystress export``.
"""
