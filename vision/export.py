"""Write a pre-trained backbone under torchvision's names, for timm, torchvision and the like.

    python vision/export.py --model out_vision/ --output resnet18.safetensors

The program prints the lines that load the file in timm or torchvision; with the CIFAR stem they
replace ``conv1`` and ``maxpool``. The file's metadata holds architecture, stem, and the size, mean
and deviation of the training images.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program
from dystress_text.errors import ParameterError
from dystress_text.io.atomic import write_bytes
from vision.architectures import IN_OTHER_LIBRARIES


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser("export.py", __doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="folder that vision/train.py wrote"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE.safetensors", help="a new file"
    )
    return parser


def export(model: Path, output: Path) -> None:
    """Write the backbone of ``model`` to ``output``, and print the code that loads it."""
    if output.suffix != ".safetensors":
        raise ParameterError("output", f"{str(output)!r} must end in .safetensors, its format")
    if output.exists():
        raise ParameterError("output", f"{str(output)!r} exists; name a new file")
    # here, so that help and errors of options come at once
    from safetensors.torch import save
    from transformers.utils import logging

    from vision.resnet import code_for_loading, contiguous, load_encoder, torchvision_names

    logging.set_verbosity_error()
    encoder = load_encoder(model)
    description = encoder.description
    if description.architecture not in IN_OTHER_LIBRARIES:
        raise ParameterError("model", f"torchvision and timm have no {description.architecture}")
    metadata = {"format": "pt", "architecture": description.architecture, "stem": description.stem}
    metadata |= {name: json.dumps(value) for name, value in asdict(encoder.input).items()}
    try:
        write_bytes(output, save(contiguous(torchvision_names(encoder)), metadata))
    except OSError as error:
        raise ParameterError("output", f"cannot write {str(output)!r}: {error.strerror}") from error
    print(code_for_loading(description, str(output)))


@program("export.py")
def main(argv: list[str]) -> None:
    export(**vars(make_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
