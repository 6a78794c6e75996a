"""How to cite the paper, and what a model was trained with."""

import re

from dystress_text.core.registry import PARTS
from dystress_text.training.run_record import RunRecord

SIMCSE = "SimCSE (Gao et al., EMNLP 2021)"
_CROPS = (
    'Two crops of a sample as its views ("Cropping outperforms dropout", '
    "arXiv 2508.03453, TMLR 2026)"
)

CITATION = """\
@misc{manna2023dynamically,
  title         = {Dynamically Scaled Temperature in Self-Supervised Contrastive Learning},
  author        = {Siladittya Manna and Soumitri Chattopadhyay and Rakesh Dey and \
Saumik Bhattacharya and Umapada Pal},
  year          = {2023},
  eprint        = {2308.01140},
  archivePrefix = {arXiv}
}"""


def credits_of(record: RunRecord) -> list[str]:
    """Return what a run was trained with, as the ``source`` of each part of its loss names it."""
    settings = record.settings
    cropped = settings.get("views") == "crop" and not settings.get("supervised")
    found = [_CROPS if cropped else SIMCSE] if settings else []
    kinds = (PARTS.get(name) for name in re.findall(r"\w+(?=\()", record.loss))
    found += [kind.source for kind in kinds if kind is not None and kind.source]
    return list(dict.fromkeys(found))
