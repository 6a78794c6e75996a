"""Image sets: where they lie, how they are decoded, split, batched and augmented.

May import dystress_text's core, cli, files and training; nothing else of vision.
"""
