"""Get data sets ready: ``python data/prepare.py --help``; the program is :mod:`dystress_text.preparation.__main__`."""

import sys

if __name__ == "__main__":  # the corpus builder's workers come by here and shall not load all of it
    from dystress_text.preparation.__main__ import main

    sys.exit(main())
