"""The training program for launchers: ``accelerate launch dystress_text/train.py``."""

import sys

from dystress_text.programs.train import main

if __name__ == "dystress_text.train":  # the module would take the place of the function
    raise ImportError("run this module as a program; the function is dystress_text.train")
if __name__ == "__main__":
    sys.exit(main())
