"""Pre-training and evaluation of image encoders (ResNets), with dystress_text's losses and training
loop.
"""
