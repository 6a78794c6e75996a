"""Make a copy of a trained model that other tools load.

    dystress export out/ --to hf        # transformers alone; the card spells the pooling out
    dystress export out/ --to onnx      # ONNX Runtime; pooling is part of the graph
    dystress export out/ --to onnx --quantize int8 --text FILE
    dystress export out/ --to native --push_to_hub NAME/MODEL

The copy lands in a folder of its own (``--output``, or ``out-hf`` and so on) and is there only if
its vectors, as the tool that it is for computes them, are those of the model (1e-4). ``native`` is
what training saves, for sentence-transformers from 5.1 on, without the run's log and checkpoints.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program

_COMPARED = 1_000  # texts at most
_READING = ("sample", "text_columns", "supervised")  # options of how a file was read


def make_parser() -> OneLineParser:
    """The program's options."""
    parser = OneLineParser("dystress export", __doc__)
    add = parser.add_argument
    add(
        "model",
        type=Path,
        help="folder of a trained model; bert-mini-wiki is the small encoder of the package",
    )
    add("--to", required=True, metavar="{native,hf,onnx}", help="layout of the copy")
    add(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where the copy goes; default beside the model, MODEL-LAYOUT",
    )
    add(
        "--quantize",
        metavar="int8",
        help="onnx: a second, smaller graph, and what it loses on a text",
    )
    add(
        "--text",
        metavar="FILE",
        help="quantize: texts to compare on, lines or a table; default the training text",
    )
    add("--push_to_hub", metavar="OWNER/NAME", help="upload the copy to this repository of the hub")
    return parser


def _texts(options: Namespace) -> list[str]:
    """Return texts to compare a copy in int8 on: the user's, or those of the model's run."""
    from dystress_text.cli.options import check_names
    from dystress_text.config.settings import TextSettings
    from dystress_text.data.texts import training_text
    from dystress_text.errors import ParameterError
    from dystress_text.training.run_folder import RECORD, read_run

    check_names("quantize", [options.quantize], ["int8"])
    files = [] if options.text is None else [options.text]
    more = {}
    if not files and (options.model / RECORD).is_file():
        record = read_run(options.model)
        files = record.train_files
        more = {name: record.settings[name] for name in _READING if name in record.settings}
    if not files:
        raise ParameterError("text", "a copy in int8 is compared on a text: name a file")
    try:
        read = training_text(TextSettings(train_file=files, **more))
    except ParameterError as error:
        raise ParameterError("text", str(error).partition(": ")[2]) from error
    texts = list(dict.fromkeys(read.sentences(read.report(), _COMPARED)))
    if len(texts) < 2:
        reason = f"{read.name!r} has {len(texts)} text to compare; two are the least"
        raise ParameterError("text", reason)
    return texts


@program("dystress export")
def main(argv: list[str]) -> None:
    """The program."""
    options = make_parser().parse_args(argv)
    # here, so that help and wrong options come at once
    from dystress_text.export.card import HERE
    from dystress_text.export.copies import PROBES, check_push, export, push
    from dystress_text.models.loading import quiet

    if options.push_to_hub is not None:
        check_push(options.push_to_hub)
    int8_on = None if options.quantize is None else _texts(options)
    with quiet():
        target = options.push_to_hub or HERE
        folder, difference = export(options.model, options.to, options.output, target, int8_on)
    probes = f"{len(PROBES)} probes"
    print(f"{folder}: vectors within {difference:.1g} of the model's, {probes}", flush=True)
    if options.push_to_hub is not None:
        print(push(folder, options.push_to_hub, folder), flush=True)
