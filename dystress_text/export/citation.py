"""How to cite the paper, and what a model was trained with."""

import re
from collections.abc import Mapping
from inspect import getdoc
from typing import Any

from dystress_text.core.registry import PARTS
from dystress_text.core.temperature import ProfileTemperature

DYSTRESS, SIMCSE = (
    "DySTreSS, the temperature (Manna et al., 2023)",
    "SimCSE (Gao et al., EMNLP 2021)",
)
_CROPS = 'Two crops of a sample as its views ("Cropping outperforms dropout", arXiv 2508.03453, TMLR 2026)'

CITATION = """\
@misc{manna2023dynamically,
  title         = {Dynamically Scaled Temperature in Self-Supervised Contrastive Learning},
  author        = {Siladittya Manna and Soumitri Chattopadhyay and Rakesh Dey and Saumik Bhattacharya and Umapada Pal},
  year          = {2023},
  eprint        = {2308.01140},
  archivePrefix = {arXiv}
}"""


def credits_of(record: Mapping[str, Any]) -> list[str]:
    """What a run was trained with and the papers that it is from, from the record.

    The first sentence of a class of the core names its source, with the year; a profile without one
    is the paper's.
    """
    settings = record.get("settings", {})
    cropped = settings.get("views") == "crop" and not settings.get("supervised")
    found = [_CROPS if cropped else SIMCSE] if settings else []
    for name in re.findall(r"\w+(?=\()", record.get("loss") or ""):
        kind = PARTS.get(name)
        first = " ".join((getdoc(kind) or "").partition("\n\n")[0].split())
        if source := re.match(r".*?\([^()]*\b20\d\d\b[^()]*\)", first):
            found.append(source[0])
        elif kind is not None and issubclass(kind, ProfileTemperature):
            found.append(DYSTRESS)
    return list(dict.fromkeys(found))
