"""The one line that a program ends with, for tests."""

import re

from dystress_text.figures import main


def error_of(capsys, *arguments, main=main):
    """What a program says when it ends with 2, of figures if none is named."""
    assert main([str(argument) for argument in arguments]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert re.match(r"dystress \w+: error: ", error)
    return error
