"""Fine-tune an encoder with SimCSE, unsupervised or supervised, and a similarity-dependent temperature.

    dystress train                              # the paper's run: BERT-base, Wiki1M, STS-B dev
    dystress train --preset quickstart          # no network, no GPU
    dystress train --train_file mine.txt        # own sentences, one per line
    dystress train --temp 0.05                  # SimCSE's constant temperature
    dystress train --supervised --train_file triplets.csv
    accelerate launch -m dystress_text.train    # on several GPUs or processes
    accelerate launch dystress_text/train.py    # the same in a checkout

The model is written to ``out/`` (``--output_dir``) in sentence-transformers' format.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from dystress_text.cli.command_line import exit_code
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.settings import RunSettings

if TYPE_CHECKING:
    from accelerate import Accelerator

    from dystress_text.encoders.encoder import SentenceEncoder


def train(settings: RunSettings) -> dict[str, Any]:
    """Run the whole recipe and return the content of ``run.json``.

    Raises:
        UserError: the settings or the data are wrong, or the run cannot be resumed.
    """
    # here, so that help and errors of the command line come at once
    from accelerate import PartialState

    from dystress_text.encoders.saving import quiet
    from dystress_text.export.card import describe_base, write_card
    from dystress_text.export.copies import check_push, export, push
    from dystress_text.report.text_page import leave_text_report
    from dystress_text.simcse.run import TextRun
    from dystress_text.simcse.start import model_path
    from dystress_text.training.run import run
    from dystress_text.training.run_folder import write_record

    def publish(output: Path, record: dict[str, Any], model: SentenceEncoder, limit: int) -> None:
        record["base_model"] = describe_base(model_path(record["settings"]["model_name_or_path"]))
        write_card(output, record, model, limit)
        write_record(output, record)  # the run is finished; its page can be made again
        published.append(output)
        page = leave_text_report(output)
        print(f"\nSentenceTransformer({str(output)!r}) loads the model.\n{page}", flush=True)

    text, output = settings.text, Path(settings.engine.output_dir)
    if text.push_to_hub is not None:
        check_push(text.push_to_hub)
    built: list[TextRun] = []
    published: list[Path] = []

    def build(accelerator: Accelerator) -> TextRun:
        built.append(run := TextRun(settings, accelerator, publish))
        return run

    with quiet():
        record = run(settings.engine, build, settings.asked())
        if text.push_to_hub is not None and not built and PartialState().is_main_process:
            print(f"it was not uploaded; dystress export {output} --to native --push_to_hub {text.push_to_hub} does it")
        if text.push_to_hub is not None and published:
            with TemporaryDirectory() as place:
                copy, _ = export(output, "native", Path(place) / "copy", text.push_to_hub)
                print(push(copy, text.push_to_hub, output), flush=True)
    return record


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)  # it warns at each checkpoint with --do_mlm

    def work() -> bool:
        train(parse(sys.argv[1:] if argv is None else argv, __doc__))
        return True

    return exit_code("dystress train", work)


if __name__ == "__main__":
    sys.exit(main())
