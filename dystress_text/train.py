"""The training program for launchers: ``accelerate launch dystress_text/train.py``; ``dystress
train --help``.
"""

import sys

from dystress_text.programs.train import main, train

if __name__ == "__main__":
    sys.exit(main())
if __name__ == "dystress_text.train":  # imported: dystress_text.train stays the function
    sys.modules[__name__] = train  # type: ignore[assignment]
