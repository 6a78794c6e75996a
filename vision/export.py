"""Write a pre-trained backbone under torchvision's names, for programs that expect its ResNets.

    python vision/export.py --model out_vision/ --output resnet18.safetensors

    from safetensors.torch import load_file
    network = torchvision.models.resnet18()
    network.load_state_dict(load_file("resnet18.safetensors"), strict=False)      # all but the
    classifier fc

With the CIFAR stem the network's ``conv1`` must first be a 3x3 convolution of stride 1, its
``maxpool`` the identity.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import transformers
from safetensors.torch import save_file

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import ParameterError
from vision.resnet import load_encoder, torchvision_names


def make_parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = OneLineParser("export.py", __doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="folder that vision/train.py wrote"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE.safetensors", help="a new file"
    )
    return parser


def export(model: Path, output: Path) -> bool:
    """Write the backbone of ``model`` as ``output``."""
    if output.exists():
        raise ParameterError("output", f"{str(output)!r} exists; name a new file")
    tensors = {
        name: tensor.contiguous() for name, tensor in torchvision_names(load_encoder(model)).items()
    }
    try:
        save_file(tensors, output)
    except Exception as error:  # safetensors has its own errors for those of the system
        raise ParameterError("output", f"cannot write {str(output)!r}: {error}") from error
    print(f"{len(tensors)} tensors in {output}")
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    transformers.utils.logging.set_verbosity_error()
    return exit_code("export.py", lambda: export(**vars(make_parser().parse_args(argv))))


if __name__ == "__main__":
    sys.exit(main())
