"""What the programs' argument parsers share."""

from __future__ import annotations

import argparse
from typing import NoReturn

from dystress_text.errors import UserError


class OneLineErrors:
    """For a parser: raises a one-line error where argparse would print its whole usage."""

    def error(self, message: str) -> NoReturn:
        """Raise the message."""
        raise UserError(f"{message} (see --help)")


class OneLineParser(OneLineErrors, argparse.ArgumentParser):
    """A parser whose help is a program's docstring as it stands, and which takes no abbreviated options."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
