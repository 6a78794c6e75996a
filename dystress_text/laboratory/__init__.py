"""Experiments with temperatures: sweeps over losses and seeds, and what a rule amounts to."""
