"""Pre-training of an image encoder: tasks, objectives without negatives, options and presets.

May import vision.evaluation, vision.data, vision.resnet, what these may import, and the page of
dystress_text.analysis.
"""
