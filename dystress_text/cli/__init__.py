"""How programs read arguments, show progress, say which extra is missing, and end with an error of one line.

May import: nothing of this package but its errors.
"""
