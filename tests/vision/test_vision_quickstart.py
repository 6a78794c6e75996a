"""Pre-training makes neighbours of images that look alike but for their nuisance: drawn ones, and real ones."""

import json

import pytest
from conftest import SHARED, reset_accelerator

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


@pytest.mark.slow(20)
def test_a_short_run_on_real_images_raises_their_knn_accuracy(tmp_path):
    folder = SHARED / "data" / "cifar10_jpeg"
    if not folder.is_dir():
        pytest.skip("no CIFAR-10 copy here")
    flags = ["--dataset", str(folder), "--architecture=resnet10_narrow", "--stem=imagenet", "--max_train_samples=4000",
             "--max_steps=60", "--optimizer=adamw", "--learning_rate=2e-3", "--max_grad_norm=1", "--eval_steps=0",
             "--knn_k=20", "--output_dir", str(tmp_path / "out")]  # fmt: skip
    assert main(flags) == 0
    reset_accelerator()
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["data"]["variant"] == "JPEG copy"
    assert record["trained"]["knn20"] >= record["untrained"]["knn20"] + 4
