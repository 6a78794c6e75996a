"""Get data sets ready: ``python data/prepare.py --help``."""

import sys

from dystress_text.programs.prepare import main

if __name__ == "__main__":
    sys.exit(main())
