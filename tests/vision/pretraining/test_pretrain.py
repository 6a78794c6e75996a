"""Pre-training end to end: the program, resuming, damaged files, and what it gains."""

import json
import os
import random
import re
import shlex
import shutil
import signal
from html import unescape

import pytest
import torch
from accelerate import Accelerator
from conftest import reset_accelerator
from PIL import Image
from processes import spawn
from safetensors.torch import load_file
from trainer_cases import interrupt
from vision_cases import colour_images

from vision import evaluate, train
from vision.data.images import EncodedImages
from vision.pretraining.task import PretrainTask
from vision.resnet import load_encoder

SMALL = [
    "--architecture=resnet10_narrow",
    "--stem=imagenet",
    "--mixed_precision=no",
    "--out_dim=16",
    "--image_size=16",
    "--train_batch_size=8",
    "--knn_k=5",
]
RESUME = "--resume_from_checkpoint"


@pytest.fixture
def folder(tmp_path):
    """Two classes of 24 and 8 small pictures for training and test."""
    found = colour_images(32, 2)
    for row, (image, label) in enumerate(zip(found.pixels, found.labels, strict=True)):
        split = "train" if row < 24 else "test"
        target = tmp_path / "pictures" / split / "ab"[label]
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(target / f"{row}.png")
    return tmp_path / "pictures"


def run(folder, output, *flags):
    code = train.main([*SMALL, f"--dataset={folder}", f"--output_dir={output}", *flags])
    reset_accelerator()
    return code


def record_of(output):
    return json.loads((output / "run.json").read_text())


def test_the_process_is_as_before(folder, tmp_path):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    precision = torch.get_float32_matmul_precision()
    before = random.getstate(), torch.get_rng_state().tolist(), dict(os.environ)
    output = f"--output_dir={tmp_path / 'out'}"
    flags = ["--gradient_accumulation_steps=2", "--max_steps=1", "--deterministic"]
    assert train.main([*SMALL, f"--dataset={folder}", output, *flags]) == 0
    assert accelerator.gradient_accumulation_steps == 4
    assert (random.getstate(), torch.get_rng_state().tolist(), dict(os.environ)) == before
    assert not torch.are_deterministic_algorithms_enabled()
    assert evaluate.main([f"--model={tmp_path / 'out'}", "--tasks=knn", "--k=3"]) == 0
    assert torch.get_float32_matmul_precision() == precision
    assert torch.backends.cudnn.allow_tf32


# ntxent, dcl and dclw are built alike; macl has a temperature with a state
@pytest.mark.parametrize(
    "loss", ["queue(0.2, queue_size=16)", "macl(alignment_adaptive(0.1, 0.5, 0), both_views=True)"]
)
def test_the_program_trains_saves_and_reports(loss, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("vision.pretraining.pretrain.CPU_BANK", 12)
    monkeypatch.setattr("vision.pretraining.pretrain.CPU_QUERIES", 3)
    out = tmp_path / "out"
    assert run(folder, out, f"--loss={loss}", "--max_steps=2", "--log_similarity") == 0
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
    ("flags", "side"),  # large pictures are decoded in each step
    [(["--loss=dcl(0.1)", "--optimizer=lars"], 120), (["--loss=queue(0.2, queue_size=16)"], 16)],
)
def test_a_resumed_run_equals_an_uninterrupted_one(flags, side, folder, tmp_path, monkeypatch):
    for picture in folder.glob("*/*/*.png"):
        Image.open(picture).resize((side, side)).save(picture)
    flags = [*flags, "--max_steps=6", "--save_steps=3"]
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
    assert run(folder, tmp_path / "parts", *flags, RESUME) == 0
    untrained = record_of(tmp_path / "whole")["untrained"]
    assert record_of(tmp_path / "parts")["untrained"] == untrained
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    parts = load_file(tmp_path / "parts" / "model.safetensors")
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize("part", ["", "train", "train/a"])
def test_the_command_that_a_run_prints_works(folder, tmp_path, part, monkeypatch, capsys):
    """Of labelled pictures, with a test split and without, and of pictures without labels."""
    monkeypatch.chdir(tmp_path)
    flags = ["--max_steps=1", "--skip_corrupt", "--max_pixels=256", "--held_out=0"]
    for picture in folder.glob("*/*/1?.png"):
        picture.write_bytes(picture.read_bytes()[:50])
    assert run(folder / part, tmp_path / "an encoder", *flags) == 0
    line = re.compile(r"^python vision/evaluate.py (.*) (?:writes|evaluates) ", re.MULTILINE)
    (command,) = map(shlex.split, line.findall(capsys.readouterr().out))
    assert evaluate.main(command) == 0
    assert ("--features" in command) == (part != "")
    assert "--max_pixels" in command


@pytest.mark.parametrize("architecture", ["resnet18", "resnet10_narrow"])
def test_the_page_says_how_other_libraries_load_the_backbone(architecture, folder, tmp_path):
    """If they have the network."""
    output = tmp_path / "out"
    assert run(folder, output, f"--architecture={architecture}", "--max_steps=1") == 0
    page = unescape((output / "report.html").read_text())
    for code in ('timm.create_model("resnet18")', "torchvision.models.resnet18()"):
        assert (code in page) == (architecture == "resnet18")
    assert ("vision/export.py --model" in page) == (architecture == "resnet18")


def test_other_pictures_are_another_run(folder, tmp_path, capsys):
    """Damaged ones that were skipped are not."""
    out = tmp_path / "out"
    flags = ["--max_steps=2", "--save_steps=1", "--keep_checkpoints"]
    assert run(folder, out, *flags) == 0
    interrupt(out)
    picture = next((folder / "train").glob("*/*.png"))
    content = picture.read_bytes()
    Image.new("RGB", (16, 16), (1, 2, 3)).save(picture)
    assert run(folder, out, *flags, RESUME) == 2
    assert "pictures, 24 images" in capsys.readouterr().err
    picture.write_bytes(content[:50])
    assert run(folder, out, *flags, RESUME, "--skip_corrupt") == 0
    assert "1 of 24 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dataset", "flag"), [("pictures", ""), ("own-set", "--data_dir=prepared")]
)
def test_the_data_are_found_from_another_folder(dataset, flag, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if flag:
        shutil.move(folder, tmp_path / "prepared" / dataset)
    listed = [f"train/{'ab'[row % 2]}/{row}.png\n" for row in range(12)]
    (tmp_path / "list.txt").write_text("".join(listed))
    flags = ["--max_steps=1", "--train_list=list.txt", "--knn_k=0", flag]
    assert run(dataset, tmp_path / "out", *filter(None, flags)) == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert evaluate.main(["--model=../out", "--tasks=knn", "--k=3"]) == 0
    (file,) = (tmp_path / "out").glob("vision-*.jsonl")
    assert json.loads(file.read_text())["data"]["train_images"] == 12


@pytest.fixture
def photos(tmp_path):
    """Photos of 120 x 100, of two classes: in gray, CMYK and colours."""
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            place = tmp_path / "photos" / split / name
            place.mkdir(parents=True)
            for mode in ("L", "CMYK", "RGB"):
                noise = Image.effect_noise((120, 100), 60).convert("RGB")
                noise.convert(mode).save(place / f"{mode}.jpg")
    return tmp_path / "photos"


PHOTOS = ["--image_size=48", "--train_batch_size=2", "--max_steps=2", "--knn_k=2"]


def test_a_run_goes_on_after_a_photo_is_damaged(photos, tmp_path, capsys, monkeypatch):
    """The step before it is saved, and another photo of its class takes its place."""
    out = tmp_path / "out"
    bad = photos / "train" / "dog" / "L.jpg"
    content = bad.read_bytes()
    to_crop = EncodedImages.to_crop
    flags = [*PHOTOS, "--max_steps=9", "--knn_k=0"]

    def damaged(self, rows, kinds, key):
        if key[-1] == 6:
            bad.write_bytes(content[:300])
        return to_crop(self, rows, kinds, key)

    with monkeypatch.context() as patch:
        patch.setattr(EncodedImages, "to_crop", damaged)
        assert run(photos, out, *flags) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    step = int(re.search(r"L\.jpg .*step (\d) is saved", line)[1])
    assert (out / f"checkpoint-{step}").is_dir()
    assert run(photos, out, *flags, RESUME, "--skip_corrupt") == 0
    printed = capsys.readouterr().out
    assert "1 of 6 images" in printed
    assert f"going on after step {step}" in printed
    assert record_of(out)["data"]["corrupt"] == 1


@pytest.mark.parametrize(
    "flags",
    [
        "--knn_k=25",
        "--grad_cache_chunk=4",
        "--key_momentum=0.5 --loss=dcl(0.1)",
        "--out_dim=8 --loss=w_mse()",
    ],
)
def test_bad_settings_are_one_line(flags, photos, tmp_path, capsys):
    """They name the first option."""
    assert run(photos, tmp_path / "out", *PHOTOS, *flags.split()) == 2
    line = capsys.readouterr().err.strip().split("\n")[-1]
    assert line.startswith(f"train.py: error: {flags.split('=')[0]}: ")
    assert not (tmp_path / "out").exists()


def test_a_listed_choice_is_recorded_and_evaluated(photos, tmp_path, capsys):
    listed = tmp_path / "tail.txt"
    out = tmp_path / "out"
    listed.write_text("train/cat/L.jpg 7\ntrain/cat/RGB.jpg 7\ntrain/dog/L.jpg 3\n")
    assert run(photos, out, *PHOTOS, f"--train_list={listed}") == 0
    variant = "listed in tail.txt, 3 images, 1 to 2 a class"
    assert record_of(out)["data"]["variant"] == variant
    assert evaluate.main([f"--model={out}", "--tasks=knn", "--k=2"]) == 0
    assert f"photos ({variant}), 6 test images" in capsys.readouterr().out


def test_one_class_trains_and_is_not_evaluated(photos, tmp_path):
    for split in ("train", "test"):
        shutil.rmtree(photos / split / "cat")
    assert run(photos, tmp_path / "out", *PHOTOS) == 0
    assert record_of(tmp_path / "out")["trained"] == {}
    assert evaluate.main([f"--model={tmp_path / 'out'}"]) == 2


@pytest.mark.parametrize("labelled", [True, False])
def test_sets_without_an_intact_image_are_one_line(labelled, photos, tmp_path, capsys):
    folder = photos if labelled else photos / "train" / "cat"
    out = tmp_path / "out"
    for photo in folder.rglob("*.jpg"):
        photo.write_bytes(photo.read_bytes()[:300])
    assert run(folder, out, *PHOTOS, "--skip_corrupt") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "corrupt" in line


def test_a_test_split_without_an_intact_image_has_no_accuracy(photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(photos, out, *PHOTOS) == 0
    for photo in (photos / "test").rglob("*.jpg"):
        photo.write_bytes(photo.read_bytes()[:300])
    capsys.readouterr()
    flags = ["--skip_corrupt", "--k=2", "--tasks=knn"]
    assert evaluate.main([f"--model={out}", *flags]) == 2
    assert "6 of 6 images" in capsys.readouterr().err


def refuse_one_image_each(folder, out):
    # in separate passes of the two views
    flags = ["--preset=cifar10", "--train_batch_size=2", "--max_steps=1"]
    assert run(folder, out, *flags) == 2


@pytest.mark.slow(30)
def test_one_image_in_each_process_is_refused(folder, tmp_path):
    """It has no batch statistics."""
    spawn(2, refuse_one_image_each, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_blur_of_one_pixel(folder, tmp_path):
    flags = ["--blur", "--image_size=1", "--max_steps=1", "--knn_k=2"]
    assert run(folder, tmp_path / "out", *flags) == 0


def test_a_larger_limit_of_pixels(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5_000)  # photos have 12,000
    out = tmp_path / "out"
    assert run(photos, out, *PHOTOS) == 2
    assert "max_pixels" in capsys.readouterr().err
    assert run(photos, out, *PHOTOS, "--max_pixels=12000") == 0
    assert Image.MAX_IMAGE_PIXELS == 5_000
    flags = [f"--model={out}", "--k=2", "--tasks=knn"]
    assert evaluate.main([*flags, "--max_pixels=11000"]) == 2
    assert evaluate.main([*flags, "--max_pixels=12000"]) == 0


@pytest.mark.parametrize(("side", "said"), [(16, "16 x 16 pixels"), (120, "at their own sizes")])
def test_the_run_says_at_what_size_images_are_cropped(side, said, folder, tmp_path, capsys):
    for picture in folder.glob("*/*/*.png"):
        Image.open(picture).resize((side, side)).save(picture)
    assert run(folder, tmp_path / "out", "--max_steps=1") == 0
    assert said in capsys.readouterr().out
    assert record_of(tmp_path / "out")["data"]["size"] == [side, side]


@pytest.mark.slow(40)
def test_the_quickstart_gains_fifteen_points(tmp_path):
    out = tmp_path / "out"
    assert train.main(["--preset=quickstart", "--seed=1", f"--output_dir={out}"]) == 0
    reset_accelerator()
    record = record_of(out)
    assert record["trained"]["knn20"] >= record["untrained"][""]["knn20"] + 15
    assert evaluate.main([f"--model={out}", "--tasks", "knn", "--k=20"]) == 0
    found = json.loads((out / "vision-shapes.jsonl").read_text())
    assert found["figures"]["top1"] == pytest.approx(record["trained"]["knn20"], abs=1e-9)
