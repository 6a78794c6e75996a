"""What programs share: arguments, progress bars, extras, text tables and one-line errors.

May import: nothing of this package but its errors.
"""
