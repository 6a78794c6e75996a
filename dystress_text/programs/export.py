"""Export a trained model for other tools.

    dystress export out/ --to hf        # for transformers; the card describes the pooling
    dystress export out/ --to onnx      # ONNX Runtime; pooling is part of the graph
    dystress export out/ --to onnx --quantize int8 --text FILE
    dystress export out/ --to native --push_to_hub NAME/MODEL

The copy is written to a folder of its own (``--output``, default ``out-hf`` and so on), and only if
the other tool computes the model's vectors from it, within 1e-4. ``native`` is the format of
sentence-transformers (5.1 or newer) that training saves, without log and checkpoints.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program

_COMPARED = 1_000  # greatest number of texts
_READING = ("text_columns", "supervised")  # options of reading a file


def make_parser() -> OneLineParser:
    """Return the program's parser."""
    parser = OneLineParser("dystress export", __doc__)
    add = parser.add_argument
    add(
        "model",
        type=Path,
        help="folder of a trained model, or bert-mini-wiki, the package's small encoder",
    )
    add("--to", required=True, metavar="{native,hf,onnx}", help="layout of the copy")
    add(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder of the copy; default MODEL-LAYOUT",
    )
    add(
        "--quantize",
        metavar="int8",
        help="onnx: write a second, smaller graph, and measure its loss on a text",
    )
    add(
        "--text",
        metavar="FILE",
        help="quantize: file to measure on, lines or a table; default the training text",
    )
    add("--push_to_hub", metavar="OWNER/NAME", help="upload the copy to this repository of the hub")
    return parser


def _texts(options: Namespace) -> list[str]:
    """Return texts to measure an int8 copy on: the user's, or those of the model's run."""
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
        raise ParameterError("text", "int8 is measured on a text; name a file")
    try:
        read = training_text(TextSettings(train_file=files, **more))
    except ParameterError as error:
        raise ParameterError("text", str(error).partition(": ")[2]) from error
    texts = list(dict.fromkeys(read.sentences(read.report(), _COMPARED)))
    if len(texts) < 2:
        reason = f"{read.name!r} has {len(texts)} distinct texts; at least two are needed"
        raise ParameterError("text", reason)
    return texts


@program("dystress export")
def main(argv: list[str]) -> None:
    """Run the program."""
    options = make_parser().parse_args(argv)
    # here, so that help and errors come at once
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
