"""Pre-training through the training: tasks, the program, resuming, clear errors, and what it
gains.
"""

import json
import re
import shutil
import signal

import pytest
import torch
from conftest import reset_accelerator
from PIL import Image
from safetensors.torch import load_file
from trainer_cases import interrupt
from transformers import ResNetModel
from vision_cases import colour_images, write_parquet

from vision import evaluate, train
from vision.data.images import EncodedImages
from vision.pretraining.task import PretrainTask
from vision.resnet import load_encoder

SMALL = [
    "--architecture",
    "resnet10_narrow",
    "--stem",
    "imagenet",
    "--out_dim",
    "16",
    "--train_batch_size",
    "8",
    "--knn_k",
    "5",
    "--mixed_precision",
    "no",
]
FLAGS = [
    "--architecture=resnet10_narrow",
    "--stem=imagenet",
    "--image_size=48",
    "--train_batch_size=2",
    "--max_steps=2",
    "--mixed_precision=no",
    "--knn_k=2",
]


@pytest.fixture
def folder(tmp_path):
    """Two classes of 24 and 8 small pictures for training and test."""
    found = colour_images(32, 2)
    for row, (image, label) in enumerate(zip(found.pixels, found.labels, strict=True)):
        place = tmp_path / "pictures" / ("train" if row < 24 else "test") / "ab"[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{row}.png")
    return tmp_path / "pictures"


def run(folder, output, *flags):
    code = train.main(
        [
            *SMALL,
            "--dataset",
            str(folder),
            "--image_size",
            "16",
            "--output_dir",
            str(output),
            *flags,
        ]
    )
    reset_accelerator()
    return code


# ntxent, dcl and dclw are built alike; macl has a temperature with a state
@pytest.mark.parametrize(
    "loss", ["queue(0.2, queue_size=16)", "macl(0.1, alpha=0.5, a_0=0, both_views=True)"]
)
@pytest.mark.usefixtures("with_pictures")
def test_the_program_trains_saves_and_reports(loss, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vision.pretraining.run.CPU_BANK", 12)
    monkeypatch.setattr("vision.pretraining.run.CPU_QUERIES", 3)
    assert run(folder, tmp_path / "out", f"--loss={loss}", "--max_steps=3", "--log_similarity") == 0
    said = capsys.readouterr().out
    assert "24 images of pictures, 2 classes" in said
    assert "kNN while training (knn5): 12 training images vote on 3 test images" in said
    assert "knn5: untrained" in said
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["program"] == "vision/train.py"
    assert (record["data"]["knn_bank"], record["data"]["knn_queries"]) == (12, 3)
    assert record["trained"]["knn5"] * 3 / 100 == pytest.approx(
        round(record["trained"]["knn5"] * 3 / 100)
    )
    lines = [
        json.loads(line)
        for line in (tmp_path / "out" / "similarity.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(-1 <= line["negative"] <= 1 and 0.02 < line["tau_negative"] < 1 for line in lines)
    assert "first and the last training batches" in (tmp_path / "out" / "report.html").read_text()
    assert load_encoder(tmp_path / "out").description.out_dim == 16


@pytest.mark.parametrize(("loss", "side"), [("dcl(0.1)", 120), ("queue(0.2, queue_size=16)", 16)])
def test_a_resumed_run_equals_an_uninterrupted_one(loss, side, folder, tmp_path, monkeypatch):
    for picture in folder.glob("*/*/*.png"):
        Image.open(picture).resize((side, side), Image.Resampling.NEAREST).save(
            picture
        )  # crops are random in 120
    flags = [
        f"--loss={loss}",
        "--max_steps=6",
        "--save_steps=3",
        *["--optimizer=lars"] * (side == 120),
    ]
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


def test_other_images_are_another_run_and_a_moved_folder_is_not(folder, tmp_path, capsys):
    flags = ["--max_steps", "4", "--save_steps", "2"]
    assert run(folder, tmp_path / "out", *flags) == 0
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(folder, tmp_path / "elsewhere" / folder.name)
    assert run(moved, tmp_path / "out", *flags, "--resume_from_checkpoint") == 0
    interrupt(tmp_path / "out")
    picture = next((moved / "train").glob("*/*.png"))
    Image.new("RGB", (16, 16), (1, 2, 3)).save(picture)
    assert run(moved, tmp_path / "out", *flags, "--resume_from_checkpoint") == 2
    assert "training data was pictures, 24 images" in capsys.readouterr().err


def test_the_accuracy_while_training_is_of_classes_by_name(tmp_path):
    """Files that name the same classes in another order, for the same images, give the same."""
    found = []
    for order in ((0, 1, 2), (2, 1, 0)):
        place = tmp_path / f"set{order[0]}"
        names = ["cat", "dog", "eel"]
        grays, labels = [20, 30, 120, 130, 220, 230], [0, 0, 1, 1, 2, 2]
        write_parquet(place / "train-0.parquet", grays, labels, names)
        theirs = [order.index(label) for label in labels]
        write_parquet(place / "test-0.parquet", grays, theirs, [names[k] for k in order])
        flags = ["--max_steps=1", "--train_batch_size=4", "--knn_k=1"]
        assert run(place, tmp_path / "out" / place.name, *flags) == 0
        record = json.loads((tmp_path / "out" / place.name / "run.json").read_text())
        found.append((record["untrained"]["knn1"], record["trained"]["knn1"]))
    assert found[0] == found[1]
    assert found[0][0] >= 50  # each test image is a training image


@pytest.fixture
def largest(monkeypatch):
    """The largest number of images that went through a backbone at once, in a list."""
    seen = [0]
    whole = ResNetModel.forward

    def forward(self, images, *args, **options):
        seen[0] = max(seen[0], len(images))
        return whole(self, images, *args, **options)

    monkeypatch.setattr(ResNetModel, "forward", forward)
    return seen


def test_no_more_images_than_the_batch_size_are_encoded_at_once(folder, tmp_path, largest):
    """Neither for the check for collapse and the kNN in training, nor in any task of evaluation."""
    assert run(folder, tmp_path / "out", "--max_steps=2", "--train_batch_size=5") == 0
    assert largest == [5]
    largest[0] = 0
    flags = [f"--model={tmp_path / 'out'}", "--k=5", "--probe=augmented", "--probe_epochs=1"]
    tasks = ["--tasks", "knn", "linear", "transfer", "svm", "--transfer_epochs=1"]
    assert evaluate.main([*flags, *tasks, "--batch_size=3"]) == 0
    assert largest == [3]


@pytest.fixture
def photos(tmp_path):
    """Photos of 120 x 100, of two classes: in gray, CMYK, colours and with a palette."""
    for split in ("train", "test"):
        for name, modes in (("cat", ("L", "CMYK", "RGB")), ("dog", ("RGB", "RGB", "P"))):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for number, mode in enumerate(modes):
                photo = Image.effect_noise((120, 100), 60).convert("RGB").convert(mode)
                photo.save(
                    tmp_path
                    / "photos"
                    / split
                    / name
                    / f"{number}.{'png' if mode == 'P' else 'jpg'}"
                )
    return tmp_path / "photos"


@pytest.fixture
def said_by(capsys, photos):
    """What a program says, and its last line of errors, which begins with its name; training writes
    to out/.
    """

    def said_by(*flags, program=train):
        own = [f"--output_dir={photos.parent / 'out'}", *FLAGS] if program is train else []
        code = program.main([f"--dataset={photos}", *own, *flags])
        reset_accelerator()
        said = capsys.readouterr()
        line = said.err.strip().split("\n")[-1]
        assert (code, line.startswith(f"{program.__name__.split('.')[1]}.py: error: ")) in (
            (0, False),
            (2, True),
        )
        return line if code else said.out

    return said_by


def test_a_photo_that_is_damaged_later_is_no_end_of_the_run(photos, tmp_path, capsys):
    """The step before it is saved; with another of its class in its place the run goes on in the
    same order.
    """
    out, bad = tmp_path / "out", photos / "train" / "dog" / "1.jpg"
    flags = [f"--dataset={photos}", *FLAGS, "--max_steps=9", f"--output_dir={out}", "--knn_k=0"]
    whole, content = EncodedImages.crops, bad.read_bytes()

    def damaged(self, rows, kinds, key):
        if key[-1] == 6:
            bad.write_bytes(content[:300])
        return whole(self, rows, kinds, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EncodedImages, "crops", damaged)
        assert train.main(flags) == 2
        reset_accelerator()
    said = capsys.readouterr().err.strip().splitlines()[-1]
    step = int(
        re.search(
            r"1\.jpg cannot be decoded.*; step (\d) is saved, --resume_from_checkpoint goes on",
            said,
        )[1]
    )
    assert (out / f"checkpoint-{step}").is_dir()
    assert step in (6, 7, 8)
    with pytest.warns(UserWarning, match="1 of 6 images of photos are corrupt and replaced"):
        assert train.main([*flags, "--resume_from_checkpoint", "--skip_corrupt"]) == 0
    assert f"going on after step {step}" in capsys.readouterr().out
    assert json.loads((out / "run.json").read_text())["data"]["corrupt"] == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--knn_k=25", "--knn_k: 25 neighbours of 6 "),
        ("--grad_cache_chunk=4", "batch normalisation uses the statistics of its batch"),
        ("--loss=byol() --temp=0.2", "--temp: byol() has no temperature to set"),
        ("--train_batch_size=1 --loss=queue(0.2)", "--train_batch_size: must lie in [2, inf)"),
        ("--key_momentum=0.5 --loss=dcl(0.1)", "--key_momentum: the loss dcl(0.1) has none"),
        ("--dataset=shapes --train_list=list.txt", "--train_list: "),
        ("--dataset=shards --train_list=list.txt", "--train_list: "),
    ],
)
def test_bad_settings_are_one_line(flags, message, photos, said_by, monkeypatch):
    write_parquet(photos.parent / "shards" / "train-0.parquet", [1, 2], [0, 1])
    monkeypatch.chdir(photos.parent)
    assert message in said_by(*flags.split())
    assert not (photos.parent / "out").exists()


def test_a_listed_choice_is_on_record_and_evaluated(photos, said_by, capsys):
    listed, out = photos.parent / "tail.txt", photos.parent / "out"
    listed.write_text("train/cat/0.jpg 7\ntrain/cat/1.jpg 7\ntrain/dog/2.png 3\n")
    words = "listed in tail.txt, 3 images, 1 to 2 a class"
    assert f"3 images of photos ({words}), 2 classes" in said_by(f"--train_list={listed}")
    assert json.loads((out / "run.json").read_text())["data"]["variant"] == words
    assert words in (out / "report.html").read_text()
    assert evaluate.main([f"--model={out}", "--tasks=knn", "--k=2"]) == 0
    assert f"photos ({words}), 6 test images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "train/cat/0.jpg\ntrain/cow/1.jpg 3\ncat/9.jpg",
            "2 files that .*train does not have.* train/cow/1.jpg",
        ),
        ("\n \n", "names no file"),
        ("\udcff", "cannot be read"),
        (None, "cannot be read: .*No such file"),
        ("dog/0.jpg", "--train_batch_size: 2 exceeds the 1 training samples"),
    ],
)
def test_lists_that_cannot_be_used_are_one_line(lines, message, photos, said_by):
    listed = photos.parent / "list.txt"
    if lines is not None:
        listed.write_text(lines, errors="surrogateescape")
    assert re.search(message, said_by(f"--train_list={listed}"))


def test_one_class_trains_and_is_not_evaluated(photos, said_by):
    for split in ("train", "test"):
        shutil.rmtree(photos / split / "cat")
    said = said_by()
    assert "no accuracy while training (dataset: the training images of photos are of one" in said
    assert "100.00" not in said
    assert "are of one class" in said_by(f"--model={photos.parent / 'out'}", program=evaluate)


@pytest.mark.parametrize("side", [16, 120])  # in memory, and decoded in each step
@pytest.mark.parametrize("mended", [False, True])
def test_a_file_that_is_damaged_between_two_parts_of_a_run(
    side, mended, folder, tmp_path, monkeypatch
):
    for picture in folder.glob("*/*/*.png"):
        Image.open(picture).resize((side, side)).save(picture)
    out, bad = tmp_path / "out", sorted(folder.glob("train/*/*.png"))[1]
    flags, step = ["--max_steps=9", "--save_steps=1"], PretrainTask.begin_step

    def stopped(self, epoch, run_fraction):
        if epoch:
            signal.raise_signal(signal.SIGTERM)
        step(self, epoch, run_fraction)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainTask, "begin_step", stopped)
        assert run(folder, out, *flags) == 143
    bad.write_bytes(bad.read_bytes()[:50])
    assert run(folder, out, *flags, "--resume_from_checkpoint") == 2
    if mended:
        Image.effect_noise((side, side), 30).convert("RGB").save(bad)
    for _ in range(2):  # as often as one likes
        with monkeypatch.context() as patch:
            patch.setattr(PretrainTask, "begin_step", stopped)
            assert run(folder, out, *flags, "--resume_from_checkpoint", "--skip_corrupt") == 143
    next(folder.glob("train/b/*.png")).rename(folder / "train" / "b" / "zz.png")
    assert (
        run(folder, out, *flags, "--resume_from_checkpoint", "--skip_corrupt") == 2
    )  # other files


@pytest.mark.slow(40)
def test_the_quickstart_gains_fifteen_points(tmp_path):
    output = str(tmp_path / "out")
    assert train.main(["--preset", "quickstart", "--seed", "1", "--output_dir", output]) == 0
    reset_accelerator()
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["trained"]["knn20"] >= record["untrained"]["knn20"] + 15
    assert (
        record["train_seconds"] < 300
    )  # two minutes on two free cores; a busy machine is allowed more
    assert (
        evaluate.main(["--model", output, "--tasks", "knn", "--k=20"]) == 0
    )  # the line that training ends with
    found = json.loads((tmp_path / "out" / "vision-shapes.json").read_text())["results"][output][
        "knn"
    ]
    assert found["20-NN"]["top1"] == pytest.approx(record["trained"]["knn20"], abs=1e-9)
