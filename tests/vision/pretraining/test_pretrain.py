"""Pre-training end to end: the program, resuming, damaged files, and what it gains."""

import json
import os
import random
import re
import shlex
import shutil
import signal
from functools import partial
from html import unescape

import pytest
import torch
from accelerate import Accelerator
from conftest import reset_accelerator
from PIL import Image
from processes import spawn
from trainer_cases import interrupt, outcome
from vision_cases import colour_images, pretrain, record_of

from vision import evaluate, train
from vision.data.images import EncodedImages
from vision.pretraining import build_task
from vision.pretraining.task import PretrainTask
from vision.resnet import load_encoder

SMALL = [
    "--stem=imagenet",
    "--out_dim=16",
    "--image_size=16",
    "--train_batch_size=8",
    "--knn_k=5",
]
RESUME = "--resume_from_checkpoint"
NEIGHBOURS = ["--tasks=knn", "--k=2"]


@pytest.fixture
def folder(tmp_path):
    """Two classes of 24 and 8 small pictures for training and test."""
    images = colour_images(32, 2)
    for row, label in enumerate(images.labels):
        split = "train" if row < 24 else "test"
        target = tmp_path / "pictures" / split / "ab"[label]
        target.mkdir(parents=True, exist_ok=True)
        images.picture(row).save(target / f"{row}.png")
    return tmp_path / "pictures"


@pytest.fixture
def photos(tmp_path):
    """Photos of 120 x 100, of two classes: in gray, CMYK and colours."""
    for place in ("train/cat", "train/dog", "test/cat", "test/dog"):
        target = tmp_path / "photos" / place
        target.mkdir(parents=True)
        for mode in ("L", "CMYK", "RGB"):
            noise = Image.effect_noise((120, 100), 60).convert("RGB")
            noise.convert(mode).save(target / f"{mode}.jpg")
    return tmp_path / "photos"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def run(dataset, output, *flags):
    return pretrain(dataset, output, *SMALL, "--max_steps=1", *flags)


def run_photos(dataset, output, *flags):
    return run(dataset, output, "--image_size=48", "--train_batch_size=2", "--knn_k=2", *flags)


def measure(output, *flags):
    return evaluate.main([f"--model={output}", *NEIGHBOURS, *flags])


def resize(folder, side):
    for picture in folder.glob("*/*/*.png"):
        Image.open(picture).resize((side, side)).save(picture)


def damage(*pictures):
    for picture in pictures:
        picture.write_bytes(picture.read_bytes()[:50])


def test_the_process_is_as_before(folder, out):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    precision = torch.get_float32_matmul_precision()
    before = random.getstate(), torch.get_rng_state().tolist(), dict(os.environ)
    flags = [*SMALL, "--gradient_accumulation_steps=2", "--max_steps=1", "--deterministic"]
    data = ["--architecture=resnet10_narrow", f"--dataset={folder}", f"--output_dir={out}"]
    assert train.main([*flags, *data, "--mixed_precision=no"]) == 0
    assert accelerator.gradient_accumulation_steps == 4
    assert (random.getstate(), torch.get_rng_state().tolist(), dict(os.environ)) == before
    assert not torch.are_deterministic_algorithms_enabled()
    assert measure(out) == 0
    assert torch.get_float32_matmul_precision() == precision
    assert torch.backends.cudnn.allow_tf32


def test_the_program_trains_saves_and_reports(folder, out, monkeypatch):
    monkeypatch.setattr(build_task, "CPU_BANK", 12)
    monkeypatch.setattr(build_task, "CPU_QUERIES", 3)
    flags = ["--loss=queue(0.2, queue_size=16)", "--max_steps=2", "--log_similarity"]
    assert run(folder, out, *flags) == 0
    record = record_of(out)
    assert record["program"] == "vision/train.py"
    assert record["data"]["knn_bank"] == 12
    assert record["data"]["knn_queries"] == 3
    right = record["trained"]["knn5"] * 3 / 100
    assert right == pytest.approx(round(right))
    lines = (out / "similarity.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert (out / "report.html").is_file()
    assert load_encoder(out).description.out_dim == 16


@pytest.mark.parametrize(
    ("flags", "side"),  # large pictures are decoded in each step; macl's temperature has a state
    [
        (["--loss=macl(alignment_adaptive(0.1, 0.5, 0))", "--optimizer=lars"], 120),
        (["--loss=queue(0.2, queue_size=16)"], 16),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(flags, side, folder, tmp_path, monkeypatch):
    resize(folder, side)
    go = partial(run, folder, tmp_path / "parts", *flags, "--max_steps=6", "--save_steps=3")
    assert go(f"--output_dir={tmp_path / 'whole'}") == 0
    step = PretrainTask.begin_step

    def interrupted(self, epoch, run_fraction):
        if run_fraction > 0.6:
            signal.raise_signal(signal.SIGTERM)
        step(self, epoch, run_fraction)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainTask, "begin_step", interrupted)
        assert go() == 128 + signal.SIGTERM
    assert go(RESUME) == 0
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("part", ["", "train", "train/a"])
def test_the_command_that_a_run_prints_works(folder, tmp_path, part, monkeypatch, capsys):
    """Of labelled pictures, with a test split and without, and of pictures without labels."""
    monkeypatch.chdir(tmp_path)
    damage(*folder.glob("*/*/1?.png"))
    flags = ["--skip_corrupt", "--max_pixels=256", "--held_out=0"]
    assert run(folder / part, tmp_path / "an encoder", *flags) == 0
    line = re.compile(r"^python vision/evaluate.py (.*) (?:writes|evaluates) ", re.MULTILINE)
    (command,) = map(shlex.split, line.findall(capsys.readouterr().out))
    assert evaluate.main(command) == 0
    assert ("--features" in command) == (part != "")
    assert "--max_pixels" in command


@pytest.mark.parametrize("architecture", ["resnet18", "resnet10_narrow"])
def test_the_page_says_how_other_libraries_load_the_backbone(architecture, folder, out):
    """If they have the network."""
    assert run(folder, out, f"--architecture={architecture}", "--no_samples", "--knn_k=0") == 0
    page = unescape((out / "report.html").read_text())
    has_network = architecture == "resnet18"
    for code in (f'("{architecture}")', f"models.{architecture}()", "vision/export.py --model"):
        assert (code in page) == has_network


def test_other_pictures_are_another_run(folder, out, capsys):
    """Damaged ones that were skipped are not."""
    go = partial(run, folder, out, "--max_steps=2", "--save_steps=1", "--keep_checkpoints")
    assert go() == 0
    interrupt(out)
    picture = next((folder / "train").glob("*/*.png"))
    Image.new("RGB", (16, 16), (1, 2, 3)).save(picture)
    assert go(RESUME) == 2
    assert "pictures, 24 images" in capsys.readouterr().err
    damage(picture)
    assert go(RESUME, "--skip_corrupt") == 0
    assert "1 of 24 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dataset", "flags"), [("pictures", []), ("own-set", ["--data_dir=prepared"])]
)
def test_the_data_are_found_from_another_folder(dataset, flags, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if flags:
        shutil.move(folder, tmp_path / "prepared" / dataset)
    listed = [f"train/{'ab'[row % 2]}/{row}.png\n" for row in range(12)]
    (tmp_path / "list.txt").write_text("".join(listed))
    assert run(dataset, tmp_path / "out", "--train_list=list.txt", "--knn_k=0", *flags) == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert measure("../out") == 0
    (file,) = (tmp_path / "out").glob("vision-*.jsonl")
    assert json.loads(file.read_text())["data"]["train_images"] == 12


def test_a_run_goes_on_after_a_photo_is_damaged(photos, out, capsys, monkeypatch):
    """The step before it is saved, and another photo of its class takes its place."""
    bad = photos / "train" / "dog" / "L.jpg"
    to_crop = EncodedImages.to_crop
    go = partial(run_photos, photos, out, "--max_steps=9", "--knn_k=0")

    def damaged(self, rows, kinds, key):
        if key[-1] == 6:
            damage(bad)
        return to_crop(self, rows, kinds, key)

    with monkeypatch.context() as patch:
        patch.setattr(EncodedImages, "to_crop", damaged)
        assert go() == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    step = int(re.search(r"L\.jpg .*step (\d) is saved", line)[1])
    assert (out / f"checkpoint-{step}").is_dir()
    assert go(RESUME, "--skip_corrupt") == 0
    printed = capsys.readouterr().out
    assert "1 of 6 images" in printed
    assert f"going on after step {step}" in printed
    assert record_of(out)["data"]["corrupt"] == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--knn_k=25"],
        ["--grad_cache_chunk=4"],
        ["--key_momentum=0.5", "--loss=dcl(0.1)"],
        ["--out_dim=8", "--loss=w_mse()", "--train_batch_size=8"],
        ["--small_crops=2", "--min_scale=0.2"],
        ["--log_similarity", "--loss=byol()"],
        ["--metric_for_best_model=knn5"],
        ["--train_batch_size=1", "--preset=cifar10"],  # it has no batch statistics
        ["--min_scale=0.05", "--small_crops=2", "--loss=dino()"],
    ],
)
def test_bad_settings_are_one_line(flags, photos, out, capsys):
    """They name the first option."""
    assert run_photos(photos, out, *flags) == 2
    line = capsys.readouterr().err.strip().split("\n")[-1]
    assert line.startswith(f"train.py: error: {flags[0].split('=')[0]}: ")
    assert not out.exists()


def test_a_listed_choice_is_recorded_and_evaluated(photos, out, tmp_path, capsys):
    listed = tmp_path / "tail.txt"
    listed.write_text("train/cat/L.jpg 7\ntrain/cat/RGB.jpg 7\ntrain/dog/L.jpg 3\n")
    assert run_photos(photos, out, f"--train_list={listed}") == 0
    variant = "listed in tail.txt, 3 images, 1 to 2 a class"
    assert record_of(out)["data"]["variant"] == variant
    assert measure(out) == 0
    assert f"photos ({variant}), 6 test images" in capsys.readouterr().out


def test_one_class_trains_and_is_not_evaluated(photos, out):
    for split in ("train", "test"):
        shutil.rmtree(photos / split / "cat")
    assert run_photos(photos, out) == 0
    assert record_of(out)["trained"] == {}
    assert measure(out) == 2


@pytest.mark.parametrize("part", ["", "train/cat"])
def test_sets_without_an_intact_image_are_one_line(part, photos, out, capsys):
    """With labels, and without."""
    damage(*photos.rglob("*.jpg"))
    assert run_photos(photos / part, out, "--skip_corrupt") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "corrupt" in line


def test_a_test_split_without_an_intact_image_has_no_accuracy(photos, out, capsys):
    assert run_photos(photos, out) == 0
    damage(*(photos / "test").rglob("*.jpg"))
    assert measure(out, "--skip_corrupt") == 2
    assert "6 of 6 images" in capsys.readouterr().err


def refuse_one_image_each(folder, out):
    # in separate passes of the two views
    assert run(folder, out, "--preset=cifar10", "--train_batch_size=2") == 2


@pytest.mark.slow(30)
def test_one_image_in_each_process_is_refused(folder, out):
    """It has no batch statistics."""
    spawn(2, refuse_one_image_each, folder, out)
    assert not out.exists()


def test_a_blur_of_one_pixel(folder, out):
    assert run(folder, out, "--blur", "--image_size=1") == 0


def test_a_larger_limit_of_pixels(photos, out, capsys, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)  # photos have 12,000
    assert run_photos(photos, out) == 2
    assert "max_pixels" in capsys.readouterr().err
    assert run_photos(photos, out, "--max_pixels=12000") == 0
    assert Image.MAX_IMAGE_PIXELS == 5_000
    assert measure(out, "--max_pixels=11000") == 2
    assert measure(out, "--max_pixels=12000") == 0


@pytest.mark.parametrize(("side", "printed"), [(16, "16 x 16 pixels"), (120, "own sizes")])
def test_the_run_says_at_what_size_images_are_cropped(side, printed, folder, out, capsys):
    resize(folder, side)
    assert run(folder, out, "--no_samples", "--knn_k=0") == 0
    assert printed in capsys.readouterr().out
    assert record_of(out)["data"]["size"] == [side, side]


@pytest.mark.slow(40)
def test_the_quickstart_gains_fifteen_points(out):
    assert train.main(["--preset=quickstart", "--seed=1", f"--output_dir={out}"]) == 0
    reset_accelerator()
    record = record_of(out)
    assert record["trained"]["knn20"] >= record["untrained"][""]["knn20"] + 15
    assert measure(out, "--k=20") == 0
    line = json.loads((out / "vision-shapes.jsonl").read_text())
    assert line["figures"]["top1"] == pytest.approx(record["trained"]["knn20"], abs=1e-9)
