"""Get data sets ready: ``python data/prepare.py --help``; the program is :mod:`dystress_text.preparation.__main__`."""

import sys

from dystress_text.preparation.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
