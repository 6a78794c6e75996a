"""Encoders: their shapes and weights, saving and loading, and equality with a ResNet written plainly."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel

from dystress_text.errors import UserError
from vision.export import main as export
from vision.resnet import build_encoder, load_encoder, save_encoder, torchvision_names


class Block(nn.Module):
    """torchvision's BasicBlock and Bottleneck, by their module names."""

    def __init__(self, sizes, kernels, stride, strided):
        super().__init__()
        self.depth = len(kernels)
        for i, kernel in enumerate(kernels):
            step = stride if i == strided else 1
            setattr(self, f"conv{i + 1}", nn.Conv2d(sizes[i], sizes[i + 1], kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(sizes[i + 1]))
        self.downsample = None
        if stride != 1 or sizes[0] != sizes[-1]:
            self.downsample = nn.Sequential(
                nn.Conv2d(sizes[0], sizes[-1], 1, stride, bias=False), nn.BatchNorm2d(sizes[-1])
            )

    def forward(self, x):
        out = x
        for i in range(1, self.depth + 1):
            out = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(out))
            out = F.relu(out) if i < self.depth else out
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class PlainResNet(nn.Module):
    """torchvision's ResNet without ``fc``."""

    def __init__(self, depths, bottleneck, cifar, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False) if cifar else nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if cifar else nn.MaxPool2d(3, 2, 1)
        last = width
        for stage, depth in enumerate(depths):
            planes = width * 2**stage
            blocks = []
            for i in range(depth):
                stride = 2 if i == 0 and stage else 1
                if bottleneck:
                    blocks.append(Block([last, planes, planes, planes * 4], [1, 3, 1], stride, strided=1))
                    last = planes * 4
                else:
                    blocks.append(Block([last, planes, planes], [3, 3], stride, strided=0))
                    last = planes
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return x.mean((2, 3))


SIZES = {
    "resnet10_narrow": ([1, 1, 1, 1], False, 32),
    "resnet18": ([2, 2, 2, 2], False, 64),
    "resnet34": ([3, 4, 6, 3], False, 64),
    "resnet50": ([3, 4, 6, 3], True, 64),
}


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
@pytest.mark.parametrize("architecture", SIZES)
def test_forward_equals_a_plain_resnet(architecture, stem):
    depths, bottleneck, width = SIZES[architecture]
    encoder = randomise(build_encoder(architecture, stem)).eval()
    plain = PlainResNet(depths, bottleneck, stem == "cifar", width).eval()
    plain.load_state_dict(torchvision_names(encoder))
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = plain(images)
        torch.testing.assert_close(encoder.features(images), expected, rtol=1e-4, atol=1e-4 * expected.abs().max())


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
        assert torch.equal(loaded.features(images), encoder.features(images))
        assert torch.equal(loaded(images), encoder(images))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# A model of mine" in card
    assert "load_encoder" in card
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {
        "README.md", "config.json", "encoder.json", "log.jsonl", "model.safetensors", "projector.safetensors",
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_auto_model_reads_the_standard_stem(tmp_path):
    encoder = randomise(build_encoder("resnet10_narrow", "imagenet")).eval()
    save_encoder(encoder, tmp_path)
    model = AutoModel.from_pretrained(tmp_path).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images).pooler_output.flatten(1), encoder.features(images))


def test_broken_folders_are_one_line(tmp_path):
    for name, content in (("encoder.json", b"{"), ("encoder.json", b'{"depth": 3}'), ("model.safetensors", b"cut"),
                          ("projector.safetensors", None)):  # fmt: skip
        save_encoder(build_encoder("resnet10_narrow"), tmp_path)
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name) as caught:
            load_encoder(tmp_path)
        assert "\n" not in str(caught.value)


def test_the_exported_file_holds_the_backbone_by_torchvisions_names(tmp_path, capsys):
    encoder = build_encoder("resnet10_narrow")
    save_encoder(encoder, tmp_path / "model")
    flags = ["--model", str(tmp_path / "model"), "--output", str(tmp_path / "names.safetensors")]
    assert export([*flags]) == 0
    found, expected = load_file(tmp_path / "names.safetensors"), torchvision_names(encoder)
    assert {"conv1.weight", "bn1.running_var", "layer4.0.downsample.0.weight"} < set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert export(flags) == 2
    assert "exists; name a new file" in capsys.readouterr().err
