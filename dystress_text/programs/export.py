"""Export a trained model for other tools.

    dystress export out/ --to hf        # for transformers; the card describes the pooling
    dystress export out/ --to onnx      # ONNX Runtime; pooling is part of the graph
    dystress export out/ --to native --push_to_hub NAME/MODEL

The copy is written to another folder (``--output``, by default ``out-hf`` and so on), and kept only
if the other tool computes the same vectors with it, within 1e-4. ``native`` is the format of
sentence-transformers, as training saves it; the log and checkpoints are left out.
"""

from __future__ import annotations

from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program


def make_parser() -> OneLineParser:
    parser = OneLineParser("dystress export", __doc__)
    add = parser.add_argument
    add("model", type=Path, help="folder of a trained model")
    add("--to", required=True, metavar="{native,hf,onnx}", help="layout of the copy")
    add(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder of the copy; default MODEL-LAYOUT",
    )
    add("--push_to_hub", metavar="OWNER/NAME", help="upload the copy to this repository of the hub")
    return parser


@program("dystress export")
def main(argv: list[str]) -> None:
    options = make_parser().parse_args(argv)
    # here, so that help and errors come at once
    from dystress_text.export.copies import PROBES, check_push, export
    from dystress_text.models.loading import quiet

    if options.push_to_hub is not None:
        check_push(options.push_to_hub)
    with quiet():
        folder, difference = export(options.model, options.to, options.output, options.push_to_hub)
    probes = f"{len(PROBES)} probes"
    print(f"{folder}: vectors within {difference:.1g} of the model's, {probes}", flush=True)
