"""Whether training on a user's own sentences helped, without labels: split, measures, choice, verdict.

May import: simcse and all rooms below it.
"""
