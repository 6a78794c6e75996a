"""What a card cites: the paper, and the sources of the views and of each part of the loss."""

import re

from dystress_text.losses.registry import PARTS
from dystress_text.models.static import STATIC
from dystress_text.training.run_record import RunRecord

SIMCSE = "SimCSE (Gao et al., EMNLP 2021)"
_CROPS = (
    'Two crops of a sample as its views ("Cropping outperforms dropout", '
    "arXiv 2508.03453, TMLR 2026)"
)
_PAIRS = "In-batch negatives of pairs (Henderson et al., arXiv 1705.00652, 2017)"

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
    """Return the sources of a run's views and of the parts of its loss, each once."""
    settings = record.settings
    sources = [SIMCSE] if settings else []
    if settings.get("supervised"):
        if settings.get("model_name_or_path") == STATIC:
            sources = [_PAIRS]
    elif settings.get("views") == "crop":
        sources = [_CROPS]
    kinds = (PARTS.get(name) for name in re.findall(r"\w+(?=\()", record.loss))
    sources += [kind.source for kind in kinds if kind is not None and kind.source]
    return list(dict.fromkeys(sources))
