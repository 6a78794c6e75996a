"""The program that writes torchvision's names."""

import pytest
import torch
from encoder_cases import tiny_encoder
from safetensors.torch import load_file

from vision.export import main
from vision.resnet import save_encoder, torchvision_names


@pytest.fixture
def model(tmp_path):
    save_encoder(tiny_encoder(), tmp_path / "model")
    return tmp_path / "model"


def test_the_file_holds_the_backbone_by_torchvisions_names(model, tmp_path):
    assert main(["--model", str(model), "--output", str(tmp_path / "names.safetensors")]) == 0
    found, expected = load_file(tmp_path / "names.safetensors"), torchvision_names(tiny_encoder())
    assert {"conv1.weight", "bn1.running_var", "layer4.0.downsample.0.weight"} < set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_what_cannot_be_done_is_one_line(model, tmp_path, capsys):
    for source, target, message in (
        (model, model / "README.md", "exists; name a new file"),
        (tmp_path / "none", tmp_path / "new", "is not a saved image encoder"),
        (model, tmp_path / "no" / "folder", "--output: cannot write"),
    ):
        assert main(["--model", str(source), "--output", str(target)]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
