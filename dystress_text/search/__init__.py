"""An index of sentences by the similarity of their vectors, and a page that searches it. Loads no trainer.

May import: simcse and all rooms below it. Program: ``dystress search``.
"""

from dystress_text.search.sentence_index import Match, SentenceIndex, add_to_index, build_index, calibrate_index

__all__ = ["Match", "SentenceIndex", "add_to_index", "build_index", "calibrate_index"]
