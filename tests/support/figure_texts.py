"""Whether the texts of a figure, and of an error, can be read, for tests."""

import re

import pytest
from matplotlib.text import Text

from dystress_text.figures import main
from dystress_text.report.plots import style


def check_texts(figure, least=10):
    """No text is clipped, smaller than 7 points, or on another, once the figure is drawn; returns what was drawn."""
    drawn, draw = [], Text.draw
    with pytest.MonkeyPatch.context() as patch, style():
        patch.setattr(Text, "draw", lambda self, *args, **more: (drawn.append(self), draw(self, *args, **more))[1])
        figure.canvas.draw()
    texts = [text for text in dict.fromkeys(drawn) if text.get_text().strip()]
    assert len(texts) > least
    boxes = [Text.get_window_extent(text) for text in texts]  # an annotation's own includes its line
    for text, box in zip(texts, boxes, strict=True):
        assert text.get_fontsize() >= 7, text
        assert min(box.x0, box.y0) >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    upright = [(t, box) for t, box in zip(texts, boxes, strict=True) if t.get_rotation() % 90 == 0]
    for i, (text, box) in enumerate(upright):
        for other, second in upright[i + 1 :]:
            width = min(box.x1, second.x1) - max(box.x0, second.x0)
            height = min(box.y1, second.y1) - max(box.y0, second.y0)
            assert min(width, height) <= 1, (text, other)
    return texts


def error_of(capsys, *arguments, main=main):
    """The one line that a program ends with, of figures if none is named."""
    assert main([str(argument) for argument in arguments]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert re.match(r"dystress \w+: error: ", error)
    return error
