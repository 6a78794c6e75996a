"""The quickstart without network: pre-training makes neighbours of images that look alike but for their nuisance."""

import json

import pytest
from conftest import reset_accelerator

from vision.train import main


@pytest.mark.slow
def test_the_quickstart_gains_fifteen_points(tmp_path):
    assert main(["--preset", "quickstart", "--seed", "1", "--output_dir", str(tmp_path / "out")]) == 0
    reset_accelerator()
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["trained"]["knn20"] >= record["untrained"]["knn20"] + 15
    assert record["train_seconds"] < 300  # two minutes on two free cores; a busy machine is allowed more
