"""Pre-training and evaluation of ResNets, on the loss core that text uses."""
