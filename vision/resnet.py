"""Image encoders: a ResNet from transformers with a training-only projector.

The backbones equal those of torchvision (a bottleneck strides in its 3x3 convolution) and start
with random weights. The CIFAR stem is a 3x3 convolution of stride 1 without max-pooling.
transformers has no such stem, so :func:`load_encoder` alone reads a folder with it, as the card in
the folder says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from shlex import quote
from textwrap import indent
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetModel

from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.io.atomic import atomic_files, write_json
from dystress_text.losses.vectors import at_least_fp32
from vision.architectures import ARCHITECTURES, IN_OTHER_LIBRARIES, STEMS

CIFAR_STEM = [
    "network.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)",
    "network.maxpool = torch.nn.Identity()",
]
DESCRIPTION = "encoder.json"
BACKBONE = "model.safetensors"
PROJECTOR = "projector.safetensors"
PROCESSOR = "preprocessor_config.json"
_INPUT = "input"


@dataclass(frozen=True)
class EncoderDescription:
    """The parts of an encoder: the arguments of :func:`build_encoder`."""

    architecture: str
    stem: str
    projector: str
    out_dim: int


@dataclass(frozen=True)
class Square:
    """The middle square of a picture that enters an encoder."""

    image_size: int  # side of the square, in pixels
    crop: float  # share of the picture's shorter side that the square covers

    @property
    def resized_side(self) -> int:
        """Return the shorter side to which the picture is resized before the square is cut."""
        return round(self.image_size / self.crop)


@dataclass(frozen=True)
class ImageInput(Square):
    """How images enter an encoder: their square and normalisation, in training and evaluation."""

    mean: tuple[float, ...]  # of the channels, of values from 0 to 1
    std: tuple[float, ...]


class ImageEncoder(nn.Module):
    """A ResNet, (n, 3, h, w) -> (n, feature_dim), and its projector, -> (n, out_dim)."""

    input: ImageInput  # set before training

    def __init__(
        self, backbone: ResNetModel, projector: nn.Module, description: EncoderDescription
    ) -> None:
        super().__init__()
        self.description = description
        self.backbone = backbone
        self.projector = projector
        self.feature_dim: int = ARCHITECTURES[description.architecture]["hidden_sizes"][-1]
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch does not declare it

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def features(self, images: Tensor) -> Tensor:
        """Return the backbone's pooled output, (n, 3, h, w) -> (n, feature_dim), at least fp32."""
        images = images.contiguous(memory_format=torch.channels_last)
        pooled: Tensor = self.backbone(images).pooler_output  # (n, feature_dim, 1, 1)
        return at_least_fp32(pooled.flatten(1))

    def forward(self, *images: Tensor) -> Tensor:
        """Return the output of the projector for batches of images, (n, 3, h, w): (all n, out_dim).

        Each batch has batch statistics of its own.
        """
        return torch.cat([self.projector(self.features(each)) for each in images])


def build_encoder(
    architecture: str = "resnet18",
    stem: str = "cifar",
    projector: str = "cifar",
    out_dim: int = 128,
) -> ImageEncoder:
    """Return an encoder with random weights, initialised as torchvision's.

    Convolutions follow He et al. by fan-out, and batch norm starts at scale 1 and shift 0.

    Args:
        architecture: a key of :data:`ARCHITECTURES`.
        stem: ``cifar`` (3x3, stride 1, no max-pooling) or ``imagenet`` (7x7, stride 2,
            max-pooling).
        projector: ``cifar`` and ``simclr`` have two layers and end in batch norm; ``cifar`` has 512
            hidden units, as in the paper's code, ``simclr`` as many as there are features.
            ``expander`` (Barlow Twins, VICReg) has three layers of ``out_dim`` units and ``byol``
            two with 4,096 hidden ones; both end in a linear layer.
        out_dim: dimensions of the projector's output.

    Raises:
        ParameterError: the stem is unknown, or ``out_dim`` is not positive.
    """
    if stem not in STEMS:
        raise ParameterError("stem", f"{stem!r} is none of {', '.join(STEMS)}")
    if out_dim < 1:
        raise ParameterError("out_dim", f"must be at least 1, got {out_dim}")
    backbone = ResNetModel(ResNetConfig(**ARCHITECTURES[architecture]))
    if stem == "cifar":
        first = backbone.embedder.embedder
        channels = first.convolution.out_channels
        first.convolution = nn.Conv2d(3, channels, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(first.convolution.weight, mode="fan_out", nonlinearity="relu")
        backbone.embedder.pooler = nn.Identity()  # type: ignore[assignment]  # declared as another class
    for module in backbone.modules():
        if isinstance(module, nn.ReLU):  # as in torchvision; the layer before needs its input only
            module.inplace = True
    features: int = ARCHITECTURES[architecture]["hidden_sizes"][-1]
    hidden = {
        "cifar": (512,),
        "simclr": (features,),
        "expander": (out_dim, out_dim),
        "byol": (4096,),
    }[projector]
    head = mlp(features, *hidden, out_dim)
    if projector in ("cifar", "simclr"):
        head.append(nn.BatchNorm1d(out_dim))
    return ImageEncoder(backbone, head, EncoderDescription(architecture, stem, projector, out_dim))


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths without bias, with batch norm and ReLU between."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        linear = nn.Linear(before, after, bias=False)
        layers += [linear, nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1], bias=False))


def save_encoder(encoder: ImageEncoder, folder: str | Path, card: str = "Pre-trained.") -> None:
    """Write a Hugging Face folder: backbone, projector, description and a card; no pickle.

    The files are renamed into the folder when all are complete; other files in it remain.
    ``AutoImageProcessor.from_pretrained`` reads the input and, with the standard stem,
    ``AutoModel.from_pretrained`` the backbone; :func:`load_encoder` reads everything.

    Args:
        encoder: the encoder, on any device.
        folder: the folder to write.
        card: text of the card, before its section on loading.
    """
    try:
        with atomic_files(folder) as staging:
            state = contiguous(encoder.backbone.state_dict())
            encoder.backbone.save_pretrained(staging, state_dict=state)
            save_file(contiguous(encoder.projector.state_dict()), staging / PROJECTOR)
            write_json(staging / PROCESSOR, _processor(encoder.input))
            described = {**asdict(encoder.description), _INPUT: asdict(encoder.input)}
            write_json(staging / DESCRIPTION, described)
            (staging / "README.md").write_text(_card(encoder, card), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write the model to {str(folder)!r}: {reason}") from error


def contiguous(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in the standard memory format, which safetensors needs."""
    return {name: tensor.contiguous() for name, tensor in state.items()}


def _card(encoder: ImageEncoder, card: str) -> str:
    parts = encoder.description
    loading = (
        "The backbone loads with `transformers.AutoModel.from_pretrained(FOLDER)`; backbone and "
        "projector with"
    )
    if parts.stem == "cifar":
        loading = (
            "The stem is a 3x3 convolution of stride 1 without max-pooling, which transformers "
            "does not know: `AutoModel.from_pretrained` cannot read this folder. It loads, in a "
            "checkout of the project, with"
        )
    exporting = indent(code_for_exporting(parts, "FOLDER"), "    ")
    libraries = f"\nIn timm or torchvision:\n\n{exporting}\n" if exporting else ""
    return f"""\
---
library_name: transformers
pipeline_tag: image-feature-extraction
---

{card.rstrip()}

## Loading

{loading}

    from vision.resnet import load_encoder

    encoder = load_encoder(FOLDER)       # {parts.architecture}, {parts.projector} projector
    features = encoder.eval().features(images)  # (n, {encoder.feature_dim})

It takes images (n, 3, h, w) of values from 0 to 1, normalised;
`transformers.AutoImageProcessor.from_pretrained(FOLDER)` prepares them as evaluation does.
{libraries}"""


def _processor(image_input: ImageInput) -> dict[str, Any]:
    """Return settings with which ``AutoImageProcessor`` prepares images as evaluation does."""
    side = image_input.image_size
    return {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": image_input.resized_side},
        "crop_size": {"height": side, "width": side},
        "resample": 2,
        "image_mean": image_input.mean,
        "image_std": image_input.std,
    }


def load_encoder(folder: str | Path) -> ImageEncoder:
    """Load the encoder that :func:`save_encoder` wrote, in fp32."""
    root = Path(folder)
    file = root / DESCRIPTION
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
        image_input = described.pop(_INPUT)
        mean = tuple(image_input.pop("mean"))
        std = tuple(image_input.pop("std"))
        encoder = build_encoder(**described)
        encoder.input = ImageInput(**image_input, mean=mean, std=std)
        for name, module in ((BACKBONE, encoder.backbone), (PROJECTOR, encoder.projector)):
            file = root / name
            module.load_state_dict(load_file(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        reason = f"it has no {file.name}"
        raise UserError(f"{str(folder)!r} is not a saved image encoder: {reason}") from error
    except Exception as error:  # json, safetensors and torch raise different errors for damage
        reason = reason_of(error)[:200]
        raise UserError(
            f"{file} is damaged or does not belong to the other files: {reason}"
        ) from error
    return encoder


def fingerprint(encoder: ImageEncoder) -> str:
    """Return a hash of the backbone's weights."""
    state = encoder.backbone.state_dict()
    content = b"".join(tensor.numpy().tobytes() for tensor in state.values())
    return hashlib.sha256(content).hexdigest()[:16]


def code_for_exporting(description: EncoderDescription, folder: str) -> str:
    """Return a command and code that load a saved backbone in timm or torchvision.

    Return "" for an architecture that neither has.
    """
    if description.architecture not in IN_OTHER_LIBRARIES:
        return ""
    file = f"{description.architecture}.safetensors"
    command = f"# after python vision/export.py --model {quote(folder)} --output {file}"
    return f"{command}\n{code_for_loading(description, file)}"


def code_for_loading(description: EncoderDescription, file: str) -> str:
    """Return the code that loads a file of vision/export.py in timm or torchvision."""
    name = description.architecture
    lines = ["import safetensors.torch, torch, torchvision  # or timm"]
    lines.append(f'network = torchvision.models.{name}()  # or timm.create_model("{name}")')
    if description.stem == "cifar":
        lines += CIFAR_STEM
    weights = f"safetensors.torch.load_file({file!r})"
    lines.append(f"network.load_state_dict({weights}, strict=False)  # all but fc")
    return "\n".join(lines)


def torchvision_names(encoder: ImageEncoder) -> dict[str, Tensor]:
    """Return the backbone's state under the names of torchvision's ResNets."""
    state = encoder.backbone.state_dict()
    return {_torchvision_name(name): tensor for name, tensor in state.items()}


def _torchvision_name(name: str) -> str:
    """Return torchvision's name for a tensor of the backbone.

    ``encoder.stages.S.layers.B.layer.C.convolution.weight`` is
    ``layer(S + 1).B.conv(C + 1).weight`` there, and so on.
    """
    parts = name.split(".")
    is_convolution = parts[-2] == "convolution"
    kind = "conv" if is_convolution else "bn"
    if parts[0] == "embedder":
        return f"{kind}1.{parts[-1]}"
    block = f"layer{int(parts[2]) + 1}.{parts[4]}"
    if parts[5] == "shortcut":
        return f"{block}.downsample.{0 if is_convolution else 1}.{parts[-1]}"
    return f"{block}.{kind}{int(parts[6]) + 1}.{parts[-1]}"
