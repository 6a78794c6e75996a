"""Pre-training of an image encoder: the task, teachers, objectives without negatives, optimizers,
options, presets.

May import vision.evaluation, vision.data, vision.resnet, what these may import, and the page of
dystress_text.analysis.
"""
