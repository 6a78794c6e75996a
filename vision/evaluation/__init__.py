"""What an image encoder is worth: features, nearest neighbours, linear probe, fine-tuning, geometry.

May import: vision.data, vision.resnet.
"""
