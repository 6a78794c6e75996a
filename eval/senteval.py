"""Evaluate sentence vectors: ``python eval/senteval.py --help``; the program is :mod:`dystress_text.senteval`."""

import sys

from dystress_text.senteval import main

if __name__ == "__main__":
    sys.exit(main())
