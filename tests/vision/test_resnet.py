"""Encoders: their shapes and weights, saving and loading, and equality with a ResNet written plainly."""

import io
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from transformers import AutoImageProcessor, AutoModel

from dystress_text.errors import UserError
from vision.data.augment import evaluation_transform
from vision.data.decoding import decode_square
from vision.resnet import ImageInput, build_encoder, load_encoder, save_encoder, torchvision_names


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


@pytest.mark.parametrize("architecture", ["resnet18", "resnet50"])
def test_torchvision_takes_the_names(architecture):
    torchvision = pytest.importorskip("torchvision", reason="torchvision is optional", exc_type=Exception)
    encoder = randomise(build_encoder(architecture, "imagenet")).eval()
    model = getattr(torchvision.models, architecture)().eval()
    missing = model.load_state_dict(torchvision_names(encoder), strict=False)
    assert sorted(missing.missing_keys) == ["fc.bias", "fc.weight"]
    assert not missing.unexpected_keys
    model.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(encoder.features(images), model(images), rtol=1e-4, atol=1e-3)


def test_training_gradients_equal_the_plain_resnets():
    encoder = randomise(build_encoder("resnet10_narrow", "cifar")).double().train()
    plain = PlainResNet([1, 1, 1, 1], False, True, 32).double().train()
    plain.load_state_dict(torchvision_names(encoder))
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    pooled = encoder.backbone(images).pooler_output.flatten(1)
    expected = plain(images)
    torch.testing.assert_close(pooled, expected)
    pooled.square().sum().backward()
    expected.square().sum().backward()
    gradients = dict(plain.named_parameters())
    ours = torchvision_names(encoder)  # names only; gradients go by the parameters' order in both state dicts
    by_name = dict(zip(ours, encoder.backbone.state_dict(keep_vars=True).values(), strict=True))
    for name, parameter in gradients.items():
        torch.testing.assert_close(by_name[name].grad, parameter.grad)


@pytest.mark.parametrize(
    ("architecture", "projector", "feature_dim", "hidden"),
    [("resnet18", "cifar", 512, 512), ("resnet50", "cifar", 2048, 512), ("resnet50", "simclr", 2048, 2048)],
)
def test_widths(architecture, projector, feature_dim, hidden):
    encoder = build_encoder(architecture, "cifar", projector, 64)
    assert (encoder.feature_dim, encoder.out_dim) == (feature_dim, 64)
    assert encoder.projector[0].out_features == hidden
    kinds = [type(layer) for layer in encoder.projector]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear, nn.BatchNorm1d]
    images = torch.randn(2, 3, 16, 16)
    assert encoder(images).shape == (2, 64)
    assert encoder.features(images).shape == (2, feature_dim)


def test_features_are_fp32_under_autocast():
    encoder = build_encoder("resnet10_narrow")
    with torch.autocast("cpu", torch.bfloat16):
        assert encoder.features(torch.randn(2, 3, 16, 16)).dtype == torch.float32


def test_initialisation_is_torchvisions():
    for stem in ("cifar", "imagenet"):
        encoder = build_encoder("resnet18", stem)
        for module in encoder.backbone.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.out_channels * module.kernel_size[0] ** 2
                assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
                assert module.bias is None
            elif isinstance(module, nn.BatchNorm2d):
                assert (module.weight == 1).all()
                assert (module.bias == 0).all()


def test_seeded_and_channels_last():
    encoders = []
    for _ in range(2):
        torch.manual_seed(3)
        encoders.append(build_encoder("resnet10_narrow"))
    first, second = (encoder.state_dict() for encoder in encoders)
    assert all(torch.equal(first[name], second[name]) for name in first)
    weight = encoders[0].backbone.embedder.embedder.convolution.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


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


@pytest.mark.parametrize(("crop", "size", "side"), [(0.875, 112, 128), (1.0, 32, 32)])
def test_auto_image_processor_does_what_evaluation_does(crop, size, side, tmp_path):
    encoder = build_encoder("resnet10_narrow", "imagenet")
    encoder.input = ImageInput(size, crop, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    save_encoder(encoder, tmp_path)
    assert load_encoder(tmp_path).input == encoder.input
    noise = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((200, 200) if crop < 1 else (32, 32), Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    seen = AutoImageProcessor.from_pretrained(tmp_path)(picture, return_tensors="pt")["pixel_values"]
    loaded = decode_square(stream.getvalue(), side)[None]
    expected = evaluation_transform(loaded, size, encoder.input.mean, encoder.input.std)
    torch.testing.assert_close(seen, expected, rtol=0, atol=1.01 / 255 / 0.2)  # a rounding


def test_the_card_says_what_images_the_encoder_takes(tmp_path):
    encoder = build_encoder("resnet10_narrow", "cifar")
    encoder.input = ImageInput(32, 1.0, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    save_encoder(encoder, tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "images (n, 3, 32, 32) of values from 0 to 1, normalised by the mean (0.5, 0.4, 0.3)" in card
    assert not (tmp_path / "preprocessor_config.json").exists()  # which would promise that transformers can use it


def test_auto_model_does_not_misread_the_cifar_stem(tmp_path):
    save_encoder(build_encoder("resnet10_narrow", "cifar"), tmp_path)
    with pytest.raises(RuntimeError):
        AutoModel.from_pretrained(tmp_path)


def damage(folder, what):
    if what == "no description":
        (folder / "encoder.json").unlink()
    elif what == "no projector":
        (folder / "projector.safetensors").unlink()
    elif what == "cut weights":
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[:-100])
    elif what == "another architecture":
        told = json.loads((folder / "encoder.json").read_text())
        (folder / "encoder.json").write_text(json.dumps(told | {"architecture": "resnet18"}))
    elif what == "another option":
        (folder / "encoder.json").write_text(json.dumps({"depth": 3}))
    elif what == "no JSON":
        (folder / "encoder.json").write_text("{")
    elif what == "a list":
        (folder / "encoder.json").write_text("[]")


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("no description", "encoder.json"),
        ("no projector", "projector.safetensors"),
        ("cut weights", "model.safetensors"),
        ("another architecture", "model.safetensors"),
        ("another option", "encoder.json"),
        ("no JSON", "encoder.json"),
        ("a list", "encoder.json"),
    ],
)
def test_broken_folders_are_one_line(tmp_path, what, named):
    save_encoder(build_encoder("resnet10_narrow"), tmp_path)
    damage(tmp_path, what)
    with pytest.raises(UserError, match=named) as caught:
        load_encoder(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"architecture": "vgg"}, "--architecture"),
        ({"stem": "vit"}, "--stem"),
        ({"projector": "mlp"}, "--projector"),
        ({"out_dim": 0}, "--out_dim"),
    ],
)
def test_unknown_options_are_named(options, named):
    with pytest.raises(UserError, match=named):
        build_encoder(**options)


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        save_encoder(build_encoder("resnet10_narrow"), tmp_path / "file" / "out")
