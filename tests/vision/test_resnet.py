"""Encoders against a ResNet written plainly; saving, loading and export."""

import re
import sys
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import AutoImageProcessor, AutoModel
from vision_cases import as_float, noise, tiny_encoder

from dystress_text.errors import ParameterError, UserError
from vision.data.loading import load_images
from vision.evaluation.features import image_features
from vision.export import main as export
from vision.resnet import ImageInput, build_encoder, load_encoder, save_encoder, torchvision_names

INPUT = ImageInput(32, 0.875, (0.25, 0.5, 0.75), (1.0, 0.5, 0.25))


def layer(x, state, convolution, norm, stride, relu=True):
    weight = state[f"{convolution}.weight"]
    x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
    x = F.batch_norm(
        x,
        state[f"{norm}.running_mean"],
        state[f"{norm}.running_var"],
        state[f"{norm}.weight"],
        state[f"{norm}.bias"],
    )
    return F.relu(x) if relu else x


def block(x, state, name):
    """A basic block or a bottleneck of torchvision's."""
    depth = 3 if f"{name}.conv3.weight" in state else 2
    stride = 2 if name.endswith(".0") and name != "layer1.0" else 1
    out = x
    for i in range(1, depth + 1):
        strided = stride if i == depth - 1 else 1  # the 3x3 convolution of a bottleneck
        out = layer(out, state, f"{name}.conv{i}", f"{name}.bn{i}", strided, relu=i < depth)
    if f"{name}.downsample.0.weight" in state:
        x = layer(x, state, f"{name}.downsample.0", f"{name}.downsample.1", stride, relu=False)
    return F.relu(out + x)


def plain_resnet(x, state, blocks, cifar):
    """torchvision's ResNet without ``fc`` in evaluation mode, from a state under its names."""
    x = layer(x, state, "conv1", "bn1", 1 if cifar else 2)
    if not cifar:
        x = F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate(blocks, 1):
        for number in range(count):
            x = block(x, state, f"layer{stage}.{number}")
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


@pytest.mark.parametrize(
    ("architecture", "stem", "blocks"),
    [("resnet18", "cifar", (2, 2, 2, 2)), ("resnet50", "imagenet", (3, 4, 6, 3))],
)
def test_features_are_a_plain_resnets(architecture, stem, blocks):
    encoder = randomise(build_encoder(architecture, stem)).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = plain_resnet(images, torchvision_names(encoder), blocks, stem == "cifar")
        found = encoder.features(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * expected.abs().max())


@pytest.fixture
def saved(tmp_path):
    """Save a random encoder to the folder ``out``, and return it."""

    def save(architecture="resnet18", stem="cifar"):
        encoder = randomise(build_encoder(architecture, stem, "cifar", 8)).eval()
        encoder.input = INPUT
        save_encoder(encoder, tmp_path / "out")
        return encoder

    return save


def export_to(file):
    return export([f"--model={file.parent / 'out'}", f"--output={file}"])


@pytest.mark.parametrize("wrong", [{"stem": "Cifar"}, {"out_dim": 0}])
def test_unknown_parts_are_refused(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        build_encoder(**wrong)


@pytest.mark.parametrize(
    ("projector", "widths"),
    [
        ("cifar", [512, 512, 32, 32]),
        ("simclr", [256, 256, 32, 32]),
        ("expander", [32, 32, 32, 32, 32]),
        ("byol", [4096, 4096, 32]),
    ],
)
def test_projectors_have_their_widths(projector, widths):
    """Of linear layers, and the batch normalisation after all but, for some, the last."""
    head = build_encoder("resnet10_narrow", projector=projector, out_dim=32).projector
    layers = [layer for layer in head if not isinstance(layer, nn.ReLU)]
    assert [len(layer.weight) for layer in layers] == widths
    assert layers[0].in_features == 256
    assert all(layer.bias is None for layer in layers[::2])


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_saved_encoders_load(tmp_path, stem, saved):
    out = tmp_path / "out"
    out.mkdir()
    (out / "log.jsonl").write_text("kept")
    encoder = saved("resnet10_narrow", stem)
    loaded = load_encoder(out).eval()
    assert loaded.description == encoder.description
    assert loaded.input == INPUT
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(images), encoder(images))
    assert (out / "log.jsonl").read_text() == "kept"
    with pytest.raises(UserError, match="is not a saved image encoder"):
        load_encoder(out / "model.safetensors")


@pytest.mark.parametrize("name", ["encoder.json", "projector.safetensors"])
def test_a_damaged_file_is_named(name, tmp_path, saved):
    saved("resnet10_narrow")
    file = tmp_path / "out" / name
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(UserError, match=name):
        load_encoder(tmp_path / "out")


def test_transformers_read_backbone_and_input(tmp_path):
    encoder = tiny_encoder().eval()  # of images of 16 pixels
    save_encoder(encoder, tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path).eval()
    image = torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    pixels = processor(image, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(pixels, as_float(image)[None])
    with torch.no_grad():
        pooled = model(pixels).pooler_output.flatten(1)
        torch.testing.assert_close(pooled, encoder.features(pixels))


@pytest.mark.parametrize("side", [32, 160, 384])
@pytest.mark.parametrize(
    ("height", "width", "crop"), [(480, 640, 0.875), (601, 350, 0.875), (601, 350, 1), (50, 66, 1)]
)
def test_evaluation_cuts_the_square_of_the_saved_processor(side, height, width, crop, tmp_path):
    encoder = tiny_encoder()
    encoder.input = replace(INPUT, image_size=side, crop=crop)
    save_encoder(encoder, tmp_path / "model")
    picture = noise(height, width)
    (tmp_path / "photos").mkdir()
    picture.save(tmp_path / "photos" / "1.png")

    encoder.features = lambda images: images.flatten(1)  # to see what enters
    images = load_images(str(tmp_path / "photos"), input_size=side)
    seen = image_features(encoder, images, 1).view(3, side, side)
    processor = AutoImageProcessor.from_pretrained(tmp_path / "model")
    expected = processor(picture, return_tensors="pt")["pixel_values"][0]
    levels = 255 * torch.tensor(INPUT.std).view(3, 1, 1)
    assert ((seen - expected) * levels).abs().max() <= 1.001


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_export_has_torchvisions_names(tmp_path, stem, saved, capsys):
    encoder = saved(stem=stem)
    file = tmp_path / "names.safetensors"
    assert export_to(file) == 0
    printed = capsys.readouterr().out
    assert ("network.conv1 = " in printed) == (stem == "cifar")
    card = (tmp_path / "out" / "README.md").read_text()
    assert ("cannot read this folder" in card) == (stem == "cifar")
    for line in printed.replace(str(file), "resnet18.safetensors").splitlines():
        assert f"    {line}\n" in card
    weights = load_file(file)
    assert {"conv1.weight", "bn1.running_var", "layer4.0.downsample.0.weight"} < set(weights)
    torch.testing.assert_close(weights, torchvision_names(encoder), rtol=0, atol=0)
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    assert metadata["stem"] == stem
    assert metadata["mean"] == "[0.25, 0.5, 0.75]"
    before = file.stat()
    assert export_to(file) == 2
    assert file.stat() == before


@pytest.mark.parametrize("library", ["timm", "torchvision"])
@pytest.mark.parametrize(
    ("architecture", "stem"),
    [("resnet18", "cifar"), ("resnet34", "imagenet"), ("resnet50", "cifar")],
)
def test_the_printed_code_loads_the_backbone(tmp_path, library, architecture, stem, saved, capsys):
    """Neither library is a dependency of this project."""
    pytest.importorskip(library)
    encoder = saved(architecture, stem)
    assert export_to(tmp_path / "names.safetensors") == 0
    code = capsys.readouterr().out
    if library == "timm":
        code = re.sub(r"torchvision.*  # or ", "", code)
    names: dict = {}
    exec(code, names)
    network = names["network"].eval()
    network.fc = nn.Identity()
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(network(images), encoder.features(images))


def test_the_printed_code_is_whole(tmp_path, saved, monkeypatch, capsys):
    encoder = saved()
    network = Mock()
    monkeypatch.setitem(sys.modules, "torchvision", Mock(**{"models.resnet18": lambda: network}))
    assert export_to(tmp_path / 'it\'s "x".safetensors') == 0
    exec(capsys.readouterr().out, {})
    (weights,) = network.load_state_dict.call_args.args
    assert weights.keys() == torchvision_names(encoder).keys()


@pytest.mark.parametrize("name", ["names.pth", "names", "missing/names.safetensors"])
def test_export_refuses_a_file_that_it_cannot_write(tmp_path, name, saved, capsys):
    saved()
    capsys.readouterr()
    assert export([f"--model={tmp_path / 'out'}", f"--output={tmp_path / name}"]) == 2
    error = capsys.readouterr().err
    assert "--output" in error
    assert error.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
