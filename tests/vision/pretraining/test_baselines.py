"""The program with every objective that has no negatives: runs on drawn shapes, what is recorded, what is refused."""

import json
from itertools import product

import pytest
import torch
from conftest import reset_accelerator
from vision_cases import ONE_PROCESS

from dystress_text.errors import TrainingError, UserError
from dystress_text.training.task import Embeddings
from vision.data.augment import SimclrAugment
from vision.data.crops import RandomCrop
from vision.pretraining.build_task import objective_of
from vision.pretraining.negative_free import NEGATIVE_FREE, ZeroCLLoss
from vision.pretraining.run import check_batch, small_views
from vision.pretraining.settings import WITHOUT_TEMPERATURE
from vision.pretraining.task import PretrainTask
from vision.resnet import load_encoder
from vision.train import main, parse

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


def test_dino_trains_with_small_crops(tmp_path):
    crops = ["--small_crops=2", "--small_crop_size=12", "--min_scale=0.3", "--max_steps=3"]
    assert main([*SHORT, "--objective=dino", *crops, "--output_dir", str(tmp_path / "out")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3]


def test_small_crops_are_made_where_the_large_ones_are_and_begin_where_those_end():
    settings = parse(["--preset=imagenet100-400-dino"]).vision
    large = SimclrAugment(RandomCrop(224, 0.14), (0.5,) * 3, (0.25,) * 3, settings.jitter, settings.blur)
    ((small, count),) = small_views(settings, large.to("meta"))
    assert (small.crop, count) == (RandomCrop(96, 0.05, 0.14), 6)
    assert (small.jitter, small.blur, small.mean.device.type) == (2.0, True, "meta")
    assert large.crop.size == 224
    assert small_views(parse(["--preset=imagenet100"]).vision, large) == ()


OF_A_TEMPERATURE = [
    "--temperature=linear", "--temp=0.2", "--tau_min=0.1", "--tau_max=0.1", "--shift=0.2", "--scale=0.5",
    "--sharpness=3", "--half_period=2", "--unit=run", "--tau_0=0.1", "--alpha=1", "--a_0=0.1", "--sigma=0.5",
    "--rule=hcl", "--beta=1", "--q=0.5", "--effective_negatives=3",
    "--detach_temperature=false", "--learn_temperature=true",
]  # fmt: skip


def test_options_of_a_temperature_are_refused():
    for objective, given in [("byol", "--temp=0.2"), *product(["vicreg"], OF_A_TEMPERATURE)]:
        option = given.split("=")[0]
        with pytest.raises(UserError, match=f"^{option}: objective '{objective}' has no negatives and takes no temp"):
            parse(["--preset", "cifar10", f"--objective={objective}", given])


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--objective=arb", "--key_momentum=0.9"], "--key_momentum: objective 'arb' has none; queue, byol, dino do"),
     (["--objective=byol", "--queue_size=9"], "--queue_size: objective 'byol' has none; queue does"),
     (["--objective=byol", "--small_crops=2"], "--small_crops: objective 'byol' has none; dino does"),
     (["--objective=dino", "--small_crop_size=48"], "--small_crop_size: has no effect without --small_crops"),
     (["--objective=dino", "--small_crops=2", "--min_scale=0.05"],
      "--min_scale: small crops take areas from 0.05 up to it, so it must lie above that, got 0.05")],
)  # fmt: skip
def test_options_of_other_objectives_are_refused(flags, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        parse(flags)


def test_there_are_no_similarities_to_log():
    for objective in WITHOUT_TEMPERATURE:
        with pytest.raises(UserError, match=f"^--log_similarity: objective '{objective}' has no negatives"):
            parse([f"--objective={objective}", "--log_similarity=true"])


def test_a_batch_too_small_to_whiten_is_refused_before_the_run():
    for objective in ("w_mse", "vicreg"):
        settings = parse(["--out_dim=64", f"--objective={objective}"])
        check_batch(settings, 65, 1)
        if objective == "w_mse":
            with pytest.raises(UserError, match=r"^--out_dim: objective 'w_mse' whitens 64 dim.*--out_dim 32 is"):
                check_batch(settings, 64, 1)
        else:
            check_batch(settings, 64, 1)


def refusing(z1, z2):
    raise torch.linalg.LinAlgError("not\npositive definite")


def test_a_factorisation_that_fails_ends_the_run_with_one_line():
    task = PretrainTask.__new__(PretrainTask)
    task.objective = refusing
    with pytest.raises(TrainingError, match=r"cannot be whitened; lower --learning_rate \(not positive definite\)"):
        task.loss(Embeddings((torch.zeros(4, 2), torch.zeros(4, 2))))


@pytest.mark.parametrize("name", NEGATIVE_FREE)
def test_embeddings_that_are_no_numbers_are_seen(name):
    z = torch.full((40, 4), torch.nan)
    try:
        loss = NEGATIVE_FREE[name]()(z, z)
    except torch.linalg.LinAlgError:
        return  # what the test above is about
    assert loss.isnan()  # which the engine sees


def test_a_named_objective_drops_the_presets_temperature():
    for objective, preset in product(WITHOUT_TEMPERATURE, ("cifar10", "cifar10-simclr", "imagenet100-shift-0.4")):
        loss = parse(["--preset", preset, "--objective", objective]).loss
        assert (loss.objective, loss.temperature, loss.temp, loss.tau_min) == (objective, None, None, None)
    assert parse(["--preset", "cifar10", "--objective=dcl"]).loss.tau_min == 0.07


def test_the_parts_of_zero_cl_are_wired():
    parts = {}
    for name in ("zero_icl", "zero_fcl", "zero_cl"):
        settings = parse([f"--objective={name}"])
        objective = objective_of(settings, ONE_PROCESS)
        assert isinstance(objective, ZeroCLLoss)
        parts[name] = objective.parts
    assert parts == {"zero_icl": "instance", "zero_fcl": "feature", "zero_cl": "both"}
