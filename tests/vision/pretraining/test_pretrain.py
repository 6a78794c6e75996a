"""Pre-training through the engine: tasks, the program, resuming, clear errors."""

import json
import shutil
import signal

import pytest
import torch
from conftest import reset_accelerator
from PIL import Image
from safetensors.torch import load_file

from vision.pretraining.task import PretrainTask
from vision.resnet import load_encoder
from vision.train import main

SMALL = ["--architecture", "resnet10_narrow", "--stem", "imagenet", "--out_dim", "16", "--train_batch_size", "8",
         "--knn_k", "5", "--mixed_precision", "no"]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Two classes of 24 and 8 small pictures for training and test."""
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 24), ("test", 8)):
        for name, colour in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
            (tmp_path / "pictures" / split / name).mkdir(parents=True)
            for i in range(count // 2):
                noise = torch.randint(0, 50, (16, 16, 3), generator=generator) + torch.tensor(colour)
                picture = Image.fromarray(noise.clamp(0, 255).to(torch.uint8).numpy())
                picture.save(tmp_path / "pictures" / split / name / f"{i}.png")
    return tmp_path / "pictures"


def run(folder, output, *flags):
    code = main([*SMALL, "--dataset", str(folder), "--image_size", "16", "--output_dir", str(output), *flags])
    reset_accelerator()
    return code


# ntxent, dcl and dclw are built alike; macl has a temperature with a state
@pytest.mark.parametrize("objective", ["queue", "macl"])
@pytest.mark.usefixtures("with_pictures")
def test_the_program_trains_saves_and_reports(objective, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vision.pretraining.run.CPU_BANK", 12)
    monkeypatch.setattr("vision.pretraining.run.CPU_QUERIES", 3)
    flags = ["--objective", objective, "--max_steps", "3", "--log_similarity"]
    flags += ["--queue_size", "16"] if objective == "queue" else []
    assert run(folder, tmp_path / "out", *flags) == 0
    said = capsys.readouterr().out
    assert "24 images of pictures, 2 classes" in said
    assert "kNN while training: 12 training images vote on 3 test images" in said
    assert "knn5: untrained" in said
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["program"] == "vision/train.py"
    assert (record["data"]["knn_bank"], record["data"]["knn_queries"]) == (12, 3)
    assert record["trained"]["knn5"] * 3 / 100 == pytest.approx(round(record["trained"]["knn5"] * 3 / 100))
    lines = [json.loads(line) for line in (tmp_path / "out" / "similarity.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(-1 <= line["negative"] <= 1 and 0.02 < line["tau_negative"] < 1 for line in lines)
    assert "first and the last training batches" in (tmp_path / "out" / "report.html").read_text()
    assert load_encoder(tmp_path / "out").description.out_dim == 16


@pytest.mark.parametrize(("objective", "side"), [("dcl", 120), ("queue", 16)])
def test_a_resumed_run_equals_an_uninterrupted_one(objective, side, folder, tmp_path, monkeypatch):
    for picture in folder.glob("*/*/*.png"):
        Image.open(picture).resize((side, side), Image.Resampling.NEAREST).save(picture)  # crops are random in 120
    flags = ["--objective", objective, "--max_steps", "6", "--save_steps", "3"]
    flags += ["--queue_size", "16"] if objective == "queue" else []
    flags += ["--optimizer", "lars"] if objective == "dcl" else []
    assert run(folder, tmp_path / "whole", *flags) == 0
    step = PretrainTask.begin_step
    calls = []

    def interrupted(self, epoch, run_fraction):
        calls.append(epoch)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGTERM)
        step(self, epoch, run_fraction)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainTask, "begin_step", interrupted)
        assert run(folder, tmp_path / "parts", *flags) == 128 + signal.SIGTERM
    stored = json.loads((tmp_path / "parts" / "run.json").read_text())
    stored["untrained"] = {"knn5": 1.25}  # to be seen again
    (tmp_path / "parts" / "run.json").write_text(json.dumps(stored))
    assert run(folder, tmp_path / "parts", *flags, "--resume_from_checkpoint") == 0
    assert json.loads((tmp_path / "parts" / "run.json").read_text())["untrained"] == {"knn5": 1.25}
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--knn_k", "25"], "--knn_k: 25 neighbours of 24 training images"),
     (["--grad_cache_chunk", "4"], "--grad_cache_chunk: "),
     (["--train_batch_size", "1", "--objective", "queue"], "a single image no batch statistics"),
     (["--key_momentum", "0.5", "--objective", "dcl"], "--key_momentum: objective 'dcl' has none")],
)  # fmt: skip
def test_bad_settings_are_one_line(flags, message, folder, tmp_path, capsys):
    assert run(folder, tmp_path / "out", "--max_steps", "1", *flags) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("train.py: error: ")
    assert message in said
    assert not (tmp_path / "out").exists()


def test_other_images_are_another_run_and_a_moved_folder_is_not(folder, tmp_path, capsys):
    flags = ["--max_steps", "4", "--save_steps", "2"]
    assert run(folder, tmp_path / "out", *flags) == 0
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(folder, tmp_path / "elsewhere" / folder.name)
    assert run(moved, tmp_path / "out", *flags, "--resume_from_checkpoint") == 0
    picture = next((moved / "train").glob("*/*.png"))
    Image.new("RGB", (16, 16), (1, 2, 3)).save(picture)
    assert run(moved, tmp_path / "out", *flags, "--resume_from_checkpoint") == 2
    assert "training data was pictures, 24 images" in capsys.readouterr().err
