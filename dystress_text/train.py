"""The training program for launchers: ``accelerate launch dystress_text/train.py``.

It is to be started, not imported: ``dystress_text.train`` is the function of that name.
"""

import sys

from dystress_text.programs.train import main

if __name__ == "__main__":
    sys.exit(main())
