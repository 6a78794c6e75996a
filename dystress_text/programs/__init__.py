"""The commands, one module each: they parse, call and print.

``train`` and ``evaluate`` are functions too; ``planned_runs`` has the runs of ``sweep``.
"""
