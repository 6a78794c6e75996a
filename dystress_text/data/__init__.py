"""Training texts: their sources, the tokenised corpus, and crops."""
