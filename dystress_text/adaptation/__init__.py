"""Whether training on a user's own sentences helped, told without labels: the split, the measures, the verdict.

May import: simcse and all rooms below it.
"""
