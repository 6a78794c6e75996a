"""Image sets: where they lie, how they are decoded, split, batched and augmented.

May import: the core, cli, files and training rooms of dystress_text.
"""
