"""The commands, one module each: they parse, call and print.

``train``, ``evaluate`` and ``audit`` are functions too.
"""
