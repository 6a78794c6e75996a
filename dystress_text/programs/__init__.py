"""The commands, a module each with ``main``: they parse, call, and print; ``train`` and ``audit``
are functions too.
"""
