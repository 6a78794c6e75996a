"""Pre-training of an image encoder: the task, teachers, objectives without negatives, optimizers, options, presets.

May import: vision.data, vision.evaluation, vision.resnet.
"""
