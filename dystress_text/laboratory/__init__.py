"""Experiments with temperatures: sweeps over losses and seeds, what a rule amounts to, the paper's
figures.
"""
