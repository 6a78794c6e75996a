"""What programs share: arguments, progress bars, the check of extras, text tables, and errors on
one line.

May import: nothing of this package but its errors.
"""
