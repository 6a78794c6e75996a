"""Pre-training makes neighbours of images that look alike but for their nuisance: drawn ones, and real ones."""

import json

import pytest
from conftest import reset_accelerator

from vision.evaluate import main as evaluate
from vision.train import main


@pytest.mark.slow(40)
def test_the_quickstart_gains_fifteen_points(tmp_path):
    output = str(tmp_path / "out")
    assert main(["--preset", "quickstart", "--seed", "1", "--output_dir", output]) == 0
    reset_accelerator()
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["trained"]["knn20"] >= record["untrained"]["knn20"] + 15
    assert record["train_seconds"] < 300  # two minutes on two free cores; a busy machine is allowed more
    assert evaluate(["--model", output, "--tasks", "knn", "--k=20"]) == 0  # the line that training ends with
    found = json.loads((tmp_path / "out" / "vision-shapes.json").read_text())["results"][output]["knn"]
    assert found["20-NN"]["top1"] == pytest.approx(record["trained"]["knn20"], abs=1e-9)
