"""Make a copy of a trained model that other tools load.

    dystress export out/ --to hf        # transformers alone; the card spells the pooling out
    dystress export out/ --to onnx      # ONNX Runtime; pooling is part of the graph
    dystress export out/ --to native --push_to_hub NAME/MODEL

The copy lands in a folder of its own (``--output``, or ``out-hf`` and so on) and is there only if its vectors, as
the tool that it is for computes them, are those of the model (1e-4). ``native`` is what training saves, for
sentence-transformers from 5.1 on, without the run's log and checkpoints.
"""

from __future__ import annotations

from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program


def make_parser() -> OneLineParser:
    """The program's options."""
    parser = OneLineParser("dystress export", __doc__)
    add = parser.add_argument
    add("model", type=Path, help="folder of a trained model")
    add("--to", required=True, metavar="{native,hf,onnx}", help="layout of the copy")
    add("--output", type=Path, metavar="FOLDER", help="where the copy goes; default beside the model, MODEL-LAYOUT")
    add("--push_to_hub", metavar="OWNER/NAME", help="upload the copy to this repository of the hub")
    return parser


@program("dystress export")
def main(words: list[str]) -> None:
    """The program."""
    options = make_parser().parse_args(words)
    # here, so that help and wrong options come at once
    from dystress_text.encoders.saving import quiet
    from dystress_text.export.card import HERE
    from dystress_text.export.copies import PROBES, check_push, export, push

    if options.push_to_hub is not None:
        check_push(options.push_to_hub)
    with quiet():
        folder, difference = export(options.model, options.to, options.output, options.push_to_hub or HERE)
    print(f"{folder}: vectors within {difference:.1g} of the model's, {len(PROBES)} probes", flush=True)
    if options.push_to_hub is not None:
        print(push(folder, options.push_to_hub, folder), flush=True)
