"""Fine-tune an encoder with SimCSE, unsupervised or supervised, and a similarity-dependent
temperature.

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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dystress_text.cli.command_line import program
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.settings import RunSettings

if TYPE_CHECKING:
    from accelerate import Accelerator
    from sentence_transformers import SentenceTransformer

    from dystress_text.core.objectives import ContrastiveLoss
    from dystress_text.encoders.encoder import SentenceEncoder


@dataclass(frozen=True)
class FinishedTraining:
    """What :func:`train` has done.

    Examples:
        >>> run = FinishedTraining(Path("mine"), {"trained": {"stsb_dev_spearman": 79.1}})
        >>> run.evaluation
        {'stsb_dev_spearman': 79.1}
    """

    folder: Path  # of the model, the logs and the page
    record: Mapping[str, Any]  # the content of its ``run.json``

    @property
    def evaluation(self) -> dict[str, float]:
        """The figures of the trained model, by the metric's name."""
        return dict(self.record["trained"])

    @cached_property
    def model(self) -> SentenceTransformer:
        """The trained model."""
        from dystress_text.encoders.loading import load_sentence_transformer

        return load_sentence_transformer(str(self.folder))


def train(
    preset: str | None = None, *, loss: ContrastiveLoss | str | None = None, **options: Any
) -> FinishedTraining:
    """Train as ``dystress train`` does, and return the run; the options are those of the command
    line.

    Args:
        preset: the settings to begin with; default the paper's.
        loss: an objective, such as ``InfoNCELoss(0.05)``, or its text; default the preset's.
        options: such as ``train_file="mine.txt"``, ``output_dir="mine"``, ``max_steps=100``.

    Raises:
        UserError: an option is unknown or wrong, the data are, or the run cannot go on.
        Interrupted: SIGTERM or Ctrl-C, after a checkpoint.

    Examples:
        >>> lines = [f"The {a} sees the {b}." for a in ("cat", "dog", "man") for b in ("sun", "sea", "car", "road")]
        >>> _ = Path("mine.txt").write_text("\\n".join(lines))
        >>> run = train("own-text", train_file="mine.txt", output_dir="mine", max_steps=2)
        static: 8,192 word pieces, 1024 numbers each
        ...
        >>> run.folder
        PosixPath('mine')
        >>> run.model.encode(["It rains."]).shape
        (1, 1024)
    """
    given = {"preset": preset, "loss": loss, **options}
    return fine_tune(
        RunSettings.of({name: value for name, value in given.items() if value is not None})
    )


def fine_tune(settings: RunSettings) -> FinishedTraining:
    """Train with settings; :func:`train` and the command line make them."""
    # here, so that help and errors of the command line come at once
    from accelerate import PartialState

    from dystress_text.encoders.saving import quiet
    from dystress_text.export.card import describe_base, write_card
    from dystress_text.export.copies import check_push, export, push
    from dystress_text.files.places import model_path
    from dystress_text.report.text_page import leave_text_report
    from dystress_text.simcse.run import TextRun
    from dystress_text.training.run import run
    from dystress_text.training.run_folder import write_record
    from dystress_text.training.run_record import RunRecord
    from dystress_text.training.surroundings import left_as_they_were

    def publish(output: Path, record: dict[str, Any], model: SentenceEncoder, limit: int) -> None:
        record["base_model"] = describe_base(model_path(record["settings"]["model_name_or_path"]))
        if text.beside is not None:
            record["beside"] |= describe_base(text.beside)
        write_card(output, RunRecord.from_json(record), model, limit)
        write_record(output, record)  # the run is finished; its page can be made again
        published.append(output)
        page, trust = (
            leave_text_report(output),
            " with trust_remote_code" * (text.beside is not None),
        )
        print(f"\nSentenceTransformer({str(output)!r}) loads the model{trust}.\n{page}", flush=True)

    text, output = settings.text, Path(settings.engine.output_dir)
    if text.push_to_hub is not None:
        check_push(text.push_to_hub)
    built: list[TextRun] = []
    published: list[Path] = []

    def build(accelerator: Accelerator) -> TextRun:
        built.append(run := TextRun(settings, accelerator, publish))
        return run

    with left_as_they_were(), quiet():
        record = run(settings.engine, build, settings.asked())
        if text.push_to_hub is not None and not built and PartialState().is_main_process:
            print(
                f"it was not uploaded; dystress export {output} --to native --push_to_hub {text.push_to_hub} does it"
            )
        if text.push_to_hub is not None and published:
            with TemporaryDirectory() as place:
                copy, _ = export(output, "native", Path(place) / "copy", text.push_to_hub)
                print(push(copy, text.push_to_hub, output), flush=True)
    return FinishedTraining(output, record)


@program("dystress train")
def main(words: list[str]) -> None:
    """The program."""
    fine_tune(parse(words, __doc__))
