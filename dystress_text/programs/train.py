"""Fine-tune a sentence encoder with SimCSE and a similarity-dependent temperature.

    dystress train                              # the paper's run: BERT-base, Wiki1M, STS-B dev
    dystress train --preset quickstart          # no network, no GPU
    dystress train --train_file mine.txt        # own sentences, one per line
    dystress train --loss "dcl(cosine(0.1, 0.2))"
    dystress train --supervised --train_file triplets.csv
    accelerate launch -m dystress_text.train    # on several GPUs or processes
    accelerate launch dystress_text/train.py    # the same in a checkout

The model is written to ``out/`` (``--output_dir``) in sentence-transformers' format.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from dystress_text.cli.command_line import program
from dystress_text.finetuning.arguments import parse
from dystress_text.finetuning.settings import FineTuningSettings

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers.base.evaluation import SentenceEvaluator

    from dystress_text.analysis.finished_run import FinishedRun
    from dystress_text.losses.objectives import ContrastiveLoss


def train(
    preset: str | None = None,
    *,
    loss: ContrastiveLoss | str | None = None,
    texts: Iterable[str] | Iterable[Sequence[str]] | Dataset | None = None,
    evaluator: SentenceEvaluator | None = None,
    **options: Any,
) -> FinishedRun:
    """Train a model as ``dystress train`` does.

    Args:
        preset: name of a preset; default the paper's.
        loss: an objective, such as ``InfoNCELoss(0.05)``, or its string; default the preset's.
        texts: training texts instead of ``train_file``: a list, iterator or pandas Series of
            strings, pairs (anchor, positive) or triplets (anchor, positive, hard negative), or a
            ``datasets.Dataset``, whose columns are chosen like those of a file.
        evaluator: a sentence-transformers evaluator, the only one unless ``eval_set`` is given. All
            numbers that it returns are metrics, the greater the better. ``primary_metric``, else
            the first one, chooses the checkpoint unless ``metric_for_best_model`` is given. It is
            called once before the first step.
        options: options of the command line by name, such as ``train_file="mine.txt"``,
            ``output_dir="mine"``, ``max_steps=100``. ``output_dir=None`` is a temporary folder,
            which is removed with the returned run.

    Returns:
        The finished run with its model and metrics.

    Raises:
        UserError: an option or the data are invalid, or training fails.
        Interrupted: SIGTERM or Ctrl-C ended the run after a checkpoint.

    Examples:
        >>> seen = ("sun", "sea", "car", "road")
        >>> lines = [f"The {a} sees the {b}." for a in ("cat", "dog", "man") for b in seen]
        >>> run = train("own-text", texts=lines, output_dir="mine", max_steps=2)
        reading list of 12 texts
        ...
        >>> run.folder
        PosixPath('mine')
        >>> run.model.encode(["It rains."]).shape
        (1, 1024)
    """
    given = {"preset": preset, "loss": loss, **options}
    if evaluator is not None:
        given.setdefault("eval_set", "none")
    with ExitStack() as temporary:
        if options.get("output_dir", "") is None:
            folder = tempfile.mkdtemp(prefix="dystress-")
            temporary.callback(shutil.rmtree, folder, ignore_errors=True)
            given["output_dir"] = folder
        settings = FineTuningSettings.of({name: x for name, x in given.items() if x is not None})
        # here, so that help and errors come at once
        from dystress_text.finetuning.fine_tune import fine_tune
        from dystress_text.finetuning.texts import with_texts

        training_text = None
        if texts is not None:
            settings, training_text = with_texts(settings, texts)
        run = fine_tune(settings, training_text, evaluator)
        weakref.finalize(run, temporary.pop_all().close)
    return run


@program("dystress train")
def main(argv: list[str]) -> None:
    settings = parse(argv, __doc__)
    from dystress_text.finetuning.fine_tune import fine_tune

    fine_tune(settings)
