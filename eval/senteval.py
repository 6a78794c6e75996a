"""Evaluate sentence vectors: ``python eval/senteval.py --help``."""

import sys

from dystress_text.programs.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
