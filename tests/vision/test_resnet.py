"""Encoders: their shapes and weights, saving and loading, and equality with a ResNet written
plainly.
"""

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel

from dystress_text.errors import ParameterError, UserError
from vision.export import main as export
from vision.resnet import ImageInput, build_encoder, load_encoder, save_encoder, torchvision_names


def plain_resnet(x, state, cifar):
    """torchvision's ResNet without ``fc`` in evaluation mode, from a state under its names."""

    def layer(x, convolution, norm, stride, relu=True):
        weight = state[f"{convolution}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        statistics = (
            state[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")
        )
        x = F.batch_norm(x, *statistics)
        return F.relu(x) if relu else x

    x = layer(x, "conv1", "bn1", 1 if cifar else 2)
    x = x if cifar else F.max_pool2d(x, 3, 2, 1)
    for block in dict.fromkeys(
        ".".join(name.split(".")[:2]) for name in state if name.startswith("layer")
    ):
        depth = sum(name.startswith(f"{block}.conv") for name in state)
        stride = 2 if block.endswith(".0") and block != "layer1.0" else 1
        out = x
        for i in range(1, depth + 1):
            strided = stride if i == (2 if depth == 3 else 1) else 1
            out = layer(out, f"{block}.conv{i}", f"{block}.bn{i}", strided, relu=i < depth)
        shortcut = f"{block}.downsample"
        short = (
            layer(x, f"{shortcut}.0", f"{shortcut}.1", stride, False)
            if f"{shortcut}.0.weight" in state
            else x
        )
        x = F.relu(out + short)
    return x.mean((2, 3))


def randomise(encoder):
    """Statistics and affine weights as after training, so that no mistake hides behind 0 and 1."""
    generator = torch.Generator().manual_seed(1)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
            for tensor in (module.bias.data, module.running_mean):
                tensor.copy_(0.2 * torch.randn(tensor.shape, generator=generator))
    return encoder


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize(
    ("architecture", "blocks"), [("resnet10_narrow", 4), ("resnet18", 8), ("resnet50", 16)]
)
def test_forward_equals_a_plain_resnet(architecture, blocks, stem):
    encoder = randomise(build_encoder(architecture, stem)).eval()
    state = torchvision_names(encoder)
    assert sum(name.endswith(".conv1.weight") for name in state) == blocks
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = plain_resnet(images, state, stem == "cifar")
        torch.testing.assert_close(
            encoder.features(images), expected, rtol=1e-4, atol=1e-4 * expected.abs().max()
        )


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_saved_encoders_load(tmp_path, stem):
    encoder = randomise(build_encoder("resnet10_narrow", stem, "simclr", 32)).eval()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "log.jsonl").write_text("kept")
    save_encoder(encoder, tmp_path / "out", "# A model of mine")
    loaded = load_encoder(tmp_path / "out").eval()
    assert loaded.description == encoder.description
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(images), encoder(images))
    assert (tmp_path / "out" / "README.md").read_text().count("# A model of mine") == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "config.json",
        "encoder.json",
        "log.jsonl",
        "model.safetensors",
        "projector.safetensors",
    ]
    if stem == "imagenet":
        model = AutoModel.from_pretrained(tmp_path / "out").eval()
        with torch.no_grad():
            torch.testing.assert_close(
                model(images).pooler_output.flatten(1), encoder.features(images)
            )
    with pytest.raises(UserError, match="is not a saved image encoder"):
        load_encoder(tmp_path / "out" / "model.safetensors")


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_a_file_of_torchvisions_names_says_what_it_is(tmp_path, stem, capsys):
    encoder = randomise(build_encoder("resnet18", stem, "cifar", 32)).eval()
    encoder.input = ImageInput(32, 0.875, (0.25, 0.5, 0.75), (1.0, 0.5, 0.25))
    save_encoder(encoder, tmp_path / "out")
    file = tmp_path / "names.safetensors"
    flags = [f"--model={tmp_path / 'out'}", f"--output={file}"]
    assert export(flags) == 0
    assert ("network.conv1 = " in capsys.readouterr().out) == (stem == "cifar")
    found, expected = load_file(file), torchvision_names(encoder)
    names = {"conv1.weight", "bn1.running_var", "layer4.0.downsample.0.weight"}
    assert names < set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {
            "format": "pt",
            "architecture": "resnet18",
            "stem": stem,
            "image_size": "32",
            "crop": "0.875",
            "mean": "[0.25, 0.5, 0.75]",
            "std": "[1.0, 0.5, 0.25]",
        }


def test_what_torchvision_cannot_load_is_not_exported(tmp_path, capsys):
    save_encoder(build_encoder("resnet10_narrow", "imagenet", "cifar", 16), tmp_path / "out")
    for output, message in (
        ("x.safetensors", "torchvision and timm have no resnet10_narrow"),
        ("x.pth", "must end in .safetensors"),
        ("out/model.safetensors", "exists; name a new file"),
    ):
        assert export([f"--model={tmp_path / 'out'}", f"--output={tmp_path / output}"]) == 2
        assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_an_unknown_part_is_named():
    with pytest.raises(ParameterError, match="stem: unknown 'other'; known are "):
        build_encoder(stem="other")
