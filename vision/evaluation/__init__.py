"""Evaluation of image encoders: features, nearest neighbours, linear probe, fine-tuning, geometry.

May import vision.data, vision.resnet, what these may import, and the drawings of dystress_text.report.
"""
