"""The program with every objective that has no negatives: runs on drawn shapes, what is recorded, what is refused."""

import json

import pytest
import torch
from conftest import reset_accelerator

from vision.resnet import load_encoder
from vision.train import main

SHORT = ["--preset", "quickstart", "--max_steps=24", "--max_train_samples=320", "--train_batch_size=32",
         "--out_dim=16", "--logging_steps=1", "--knn_k=0", "--mixed_precision=no", "--learning_rate=2e-3"]  # fmt: skip


# one of each kind: whitening, redundancy, a predictor with its follower, clusters; the others are formulas of their own
@pytest.mark.parametrize("objective", ["w_mse", "vicreg", "byol", "dino"])
def test_a_short_run_on_shapes_lowers_the_loss(objective, tmp_path, capsys):
    assert main([*SHORT, "--objective", objective, "--output_dir", str(tmp_path / "out")]) == 0
    reset_accelerator()
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = torch.tensor([line["loss"] for line in lines if "loss" in line])
    assert len(losses) == 24
    assert losses[-5:].mean() < 0.97 * losses[:3].mean()
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["temperature"] is None
    assert record["settings"]["temperature"] is record["settings"]["tau_min"] is None  # the preset's is not taken
    assert load_encoder(tmp_path / "out").out_dim == 16
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"Pre-trained on shapes with {objective}." in card
    assert "emperature" not in card + capsys.readouterr().out
