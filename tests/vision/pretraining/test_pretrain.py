"""Pre-training through the engine: tasks, the program, resuming, clear errors."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from accelerate import DistributedType
from conftest import reset_accelerator
from PIL import Image
from safetensors.torch import load_file
from vision_cases import processes

from dystress_text import audit
from dystress_text.core import NTXentLoss, QueueInfoNCELoss
from dystress_text.errors import UserError
from dystress_text.training.build_loss import build_temperature
from vision.data.augment import SimclrAugment, evaluation_transform
from vision.data.crops import RandomCrop
from vision.data.images import ImageSet
from vision.data.loading import load_splits
from vision.data.pictures import PictureFiles
from vision.data.views import RandomViews
from vision.evaluate import main as evaluate
from vision.evaluation.features import image_features
from vision.evaluation.measures import Subject
from vision.evaluation.online import OnlineKnn
from vision.pretraining.build_task import objective_of
from vision.pretraining.loss_defaults import VISION
from vision.pretraining.run import check_batch
from vision.pretraining.task import PretrainTask, QueueTask
from vision.resnet import build_encoder, load_encoder
from vision.train import main, parse

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


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    yield
    reset_accelerator()


def run(folder, output, *flags):
    code = main([*SMALL, "--dataset", str(folder), "--image_size", "16", "--output_dir", str(output), *flags])
    reset_accelerator()
    return code


def tiny_images(n=12):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, 16, 16), dtype=torch.uint8, generator=generator)
    return ImageSet(images, None, torch.arange(n) % 2, ("a", "b"), "noise", None, 16)


def make_task(kind=PretrainTask, objective=None, **options):
    torch.manual_seed(0)
    encoder = build_encoder("resnet10_narrow", "imagenet", "cifar", 16)
    augment = SimclrAugment(RandomCrop(16), (0.5,) * 3, (0.25,) * 3)
    return kind(encoder, RandomViews(tiny_images(), augment), objective or NTXentLoss(0.1), **options)


def test_two_views_of_each_image_that_differ():
    task = make_task()
    task.model.eval()
    first, second = task.embed(task.model, task.load(torch.arange(5).numpy(), 0)).views
    assert first.shape == second.shape == (5, 16)
    assert torch.equal(task.load(np.array([3, 0]), 0)["images"], task.views.images.images[[3, 0]])
    assert not torch.allclose(first, second)


def test_pictures_are_cropped_as_they_are_decoded(folder):
    files = sorted((folder / "train").glob("*/*.png"))
    pictures = ImageSet(None, PictureFiles(files), None, (), "pictures", None, 16)
    task = make_task()
    task = PretrainTask(task.model, replace(task.views, images=pictures), task.objective)
    batch = task.load(np.array([3, 0]), 7)
    assert batch["crops0"].shape == (2, 2, 3, 16, 16)
    assert not torch.equal(batch["crops0"][:, 0], batch["crops0"][:, 1])
    assert torch.equal(task.load(np.array([0, 3, 1]), 7)["crops0"][:2], batch["crops0"].flip(0))  # in any batch
    assert not torch.equal(task.load(np.array([3, 0]), 8)["crops0"], batch["crops0"])
    assert task.embed(task.model, batch).views[0].shape == (2, 16)


def test_the_key_encoder_follows_by_its_momentum_and_takes_no_gradient():
    objective = QueueInfoNCELoss(0.1, queue_size=32, dim=16)
    task = make_task(QueueTask, objective, momentum=0.9, autocast=torch.no_grad)
    before = [p.clone() for p in task.key_encoder.parameters()]
    with torch.no_grad():
        for p in task.model.parameters():
            p.add_(1.0)
    task.begin_step(0.0, 0.0)
    for old, key, query in zip(before, task.key_encoder.parameters(), task.model.parameters(), strict=True):
        torch.testing.assert_close(key, 0.9 * old + 0.1 * query)
    task.loss(task.embed(task.model, task.load(torch.arange(4).numpy(), 0))).backward()
    assert all(p.grad is None for p in task.key_encoder.parameters())
    assert all(p.grad is not None for p in task.model.parameters())


# ntxent, dcl and dclw are built alike; macl has a temperature with a state
@pytest.mark.parametrize("objective", ["queue", "macl"])
@pytest.mark.usefixtures("with_pictures")
def test_the_program_trains_saves_and_reports(objective, folder, tmp_path, capsys):
    flags = ["--objective", objective, "--max_steps", "3", "--log_similarity"]
    flags += ["--queue_size", "16"] if objective == "queue" else []
    assert run(folder, tmp_path / "out", *flags) == 0
    said = capsys.readouterr().out
    assert "24 images of pictures, 2 classes" in said
    assert "knn5: untrained" in said
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["program"] == "vision/train.py"
    assert set(record["trained"]) == {"knn5"}
    lines = [json.loads(line) for line in (tmp_path / "out" / "similarity.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(-1 <= line["negative"] <= 1 and 0.02 < line["tau_negative"] < 1 for line in lines)
    assert "first and the last training batches" in (tmp_path / "out" / "report.html").read_text()
    if objective == "queue":
        assert audit.main([str(tmp_path / "out")]) == 0
        assert capsys.readouterr().out.startswith("On these images this rule is ")
    encoder = load_encoder(tmp_path / "out")
    assert encoder.out_dim == 16


@pytest.mark.parametrize(("objective", "side"), [("dcl", 120), ("queue", 16), ("dino", 16)])
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
            raise KeyboardInterrupt
        step(self, epoch, run_fraction)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainTask, "begin_step", interrupted)
        assert run(folder, tmp_path / "parts", *flags) == 130
    stored = json.loads((tmp_path / "parts" / "run.json").read_text())
    stored["untrained"] = {"knn5": 1.25}  # to be seen again
    (tmp_path / "parts" / "run.json").write_text(json.dumps(stored))
    assert run(folder, tmp_path / "parts", *flags, "--resume_from_checkpoint") == 0
    assert json.loads((tmp_path / "parts" / "run.json").read_text())["untrained"] == {"knn5": 1.25}
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(("side", "view", "loaded"), [((16, 16), 16, 16), ((120, 130), 104, 119)])
def test_evaluation_sees_what_the_online_evaluation_saw(side, view, loaded, folder, tmp_path):
    for picture in folder.glob("*/*/*.png"):
        Image.open(picture).resize(side, Image.Resampling.NEAREST).save(picture)
    flags = ["--max_steps", "2", "--max_train_samples", "20", "--image_size", str(view)]
    assert run(folder, tmp_path / "out", *flags) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (record["data"]["loaded_size"], record["data"]["corrupt"]) == (loaded, 0)
    assert evaluate([f"--model={tmp_path / 'out'}", "--tasks", "knn", "--k=5", "--l2_k=1"]) == 0
    found = json.loads((tmp_path / "out" / "vision-pictures.json").read_text())
    assert (found["data"]["image_size"], found["data"]["loaded_size"]) == (view, loaded)

    splits = load_splits(str(folder), view=view)
    encoder = load_encoder(tmp_path / "out")
    bank = splits.train.sample(20, 42)
    transform = partial(evaluation_transform, size=view, mean=encoder.input.mean, std=encoder.input.std)
    assert OnlineKnn(bank, splits.test, transform, 5)(encoder) == pytest.approx(record["trained"], abs=1e-9)
    assert (splits.mean, splits.std) == (encoder.input.mean, encoder.input.std)  # of all images, not of the sample
    subject = Subject(encoder, splits, encoder.input)
    assert torch.equal(subject.test, image_features(encoder, splits.test, transform))


def test_the_same_seed_gives_the_same_encoder(folder, tmp_path):
    for name in ("a", "b"):
        assert run(folder, tmp_path / name, "--max_steps", "2") == 0
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_folder_without_labels_trains_without_evaluation(folder, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for i, file in enumerate(sorted((folder / "train").glob("*/*.png"))):
        (flat / f"{i}.png").write_bytes(file.read_bytes())
    assert run(flat, tmp_path / "out", "--max_steps", "2") == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["trained"] == {}


def test_a_damaged_test_split_is_an_error_and_a_missing_one_is_told(folder, tmp_path, capsys):
    picture = next((folder / "test").glob("*/*.png"))
    picture.write_bytes(b"damaged")
    assert run(folder, tmp_path / "out", "--max_steps", "1") == 2
    assert str(picture) in capsys.readouterr().err
    shutil.rmtree(folder / "test")
    assert run(folder, tmp_path / "out", "--max_steps", "1") == 0
    assert "no test split with labels: no accuracy while training" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--knn_k", "25"], "--knn_k: 25 neighbours of 24 training images"),
     (["--grad_cache_chunk", "4"], "--grad_cache_chunk: "),
     (["--train_batch_size", "1"], "--train_batch_size: must be at least 2"),
     (["--train_batch_size", "1", "--objective", "queue"], "a single image no batch statistics"),
     (["--metric_for_best_model", "foo"], "--metric_for_best_model: 'foo' is not measured; known is knn5"),
     (["--metric_for_best_model", "knn5", "--knn_k", "0"], "--metric_for_best_model: 'knn5' is not measured; there is"),
     (["--queue_size", "16"], "--queue_size: objective 'ntxent' has none"),
     (["--key_momentum", "0.5", "--objective", "dcl"], "--key_momentum: objective 'dcl' has none"),
     (["--train_batch_size", "99"], "--train_batch_size: 99 exceeds the 24"),
     (["--key_momentum", "1"], "--key_momentum: must lie in"),
     (["--min_scale", "0"], "--min_scale: must lie in"),
     (["--jitter", "3"], "--jitter: must lie in [0, 2.5], got 3.0"),
     (["--objective", "queue", "--sigma", "0.5"], "--sigma: only dclw and adnce take it"),
     (["--objective", "queue", "--temperature", "isogclr"], "--temperature isogclr: a temperature a sample does not"),
     (["--temperature", "cosine", "--temp", "0.1"], "--temp"),
     (["--optimizer", "lion"], "--optimizer")],
)  # fmt: skip
def test_bad_settings_are_one_line(flags, message, folder, tmp_path, capsys):
    assert run(folder, tmp_path / "out", "--max_steps", "1", *flags) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("train.py: error: ")
    assert message in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["train_batch_size", "per_device_train_batch_size"])
def test_one_image_a_process_is_refused_by_the_option_that_was_given(option):
    with pytest.raises(UserError, match=f"^--{option}: batch normalisation needs at least 2"):
        check_batch(parse(["--objective=queue", f"--{option}=1"]), 2, 2)
    check_batch(parse(["--objective=queue", f"--{option}=1", "--sync_batchnorm"]), 2, 2)
    check_batch(parse(["--objective=ntxent", f"--{option}=1"]), 2, 2)  # two views of one image have a spread


def test_a_queue_on_several_processes_needs_synchronised_statistics():
    for flags, refused in (([], True), (["--sync_batchnorm"], False)):
        settings = parse(["--objective=queue", *flags])
        with pytest.raises(UserError, match="add --sync_batchnorm") if refused else nullcontext():
            objective_of(settings, processes(2))


@pytest.mark.parametrize("objective", ["queue", "byol", "dino"])
def test_an_encoder_that_follows_is_refused_under_fsdp(objective):
    with pytest.raises(UserError, match=f"--objective {objective}: .* leave FSDP out"):
        objective_of(parse([f"--objective={objective}"]), processes(2, DistributedType.FSDP))


def test_missing_data_is_one_line(tmp_path, capsys):
    assert run(tmp_path / "nowhere", tmp_path / "out", "--max_steps", "1") == 2
    assert "nowhere" in capsys.readouterr().err


def test_the_vision_defaults_of_a_temperature():
    built = repr(build_temperature(parse(["--dataset", "shapes"]).loss, VISION))
    assert built == "CosineTemperature(tau_min=0.07, tau_max=0.2)"
    schedule = build_temperature(parse(["--preset", "cifar10_lt-2000-schedule"]).loss, VISION)
    assert (schedule.tau_max, schedule.half_period, schedule.unit) == (1.0, 200, "epoch")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [(["--temperature", "linear"], "LinearTemperature(tau_min=0.1, tau_max=0.2)"),
     (["--temperature=linear", "--tau_max=0.3"], "LinearTemperature(tau_min=0.1, tau_max=0.3)"),
     (["--objective=macl"], "AlignmentAdaptiveTemperature(tau_0=0.1, alpha=0.5, a_0=0.0)"),
     (["--temperature=alignment_adaptive"], "AlignmentAdaptiveTemperature(tau_0=0.1, alpha=0.5, a_0=0.0)"),
     (["--temperature=alignment_adaptive", "--alpha=0.2"],
      "AlignmentAdaptiveTemperature(tau_0=0.1, alpha=0.2, a_0=0.0)")],
)  # fmt: skip
def test_a_profile_that_is_named_keeps_the_presets_range(flags, expected):
    assert repr(build_temperature(parse(["--preset", "imagenet100", *flags]).loss, VISION)) == expected


@pytest.mark.parametrize("preset", ["cifar10-simclr", "cifar10_lt-2000-schedule", "cifar10-macl"])
def test_what_is_no_profile_hands_no_range_on(preset):
    built = build_temperature(parse(["--preset", preset, "--temperature=linear", "--objective=ntxent"]).loss, VISION)
    assert repr(built) == "LinearTemperature(tau_min=0.07, tau_max=0.2)"


@pytest.mark.parametrize("flags", [["--temp", "0.2"], ["--temperature=constant", "--temp=0.2"]])
def test_a_temperature_that_is_named_takes_the_place_of_the_presets(flags):
    built = build_temperature(parse(["--preset", "imagenet100", *flags]).loss, VISION)
    assert repr(built) == "ConstantTemperature(tau=0.2)"


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
