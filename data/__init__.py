"""Preparing real data sets: unpacking archives, choosing subsets."""
