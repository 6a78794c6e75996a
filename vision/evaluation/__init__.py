"""Evaluation of image encoders: features, nearest neighbours, linear probe, fine-tuning, geometry.

May import vision.data, vision.resnet, and what these may import.
"""
