"""Preparing real data sets and corpora; the small embedded defaults."""
