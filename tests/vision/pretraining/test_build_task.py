"""What settings make: optimisers, and a step of each kind of task."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from meta_cases import META, leave_autocast_out, step, to_meta
from torch import nn
from vision_cases import colour_images

from dystress_text.errors import ParameterError
from dystress_text.losses import QueueInfoNCELoss
from dystress_text.training.accelerator import make_accelerator
from vision.data.crops import RandomCrop
from vision.pretraining.build_task import (
    fit_batch,
    make_objective,
    make_optimizer,
    make_views,
    on_device,
    prepare_run,
)
from vision.pretraining.settings import PretrainSettings, VisionSettings
from vision.resnet import ImageInput
from vision.train import parse


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("sqrt", 8), ("linear", 0.25)])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_rate_is_scaled_to_the_batch(scaling, factor, optimizer):
    flags = ["--learning_rate=0.075", "--train_batch_size=64", f"--optimizer={optimizer}"]
    made = make_optimizer(nn.Linear(2, 2), parse([*flags, f"--lr_scaling={scaling}"]))
    assert made.param_groups[0]["lr"] == pytest.approx(0.075 * factor)


def test_sgd_against_its_formula():
    """Momentum 0.9, and decay of all weights."""
    net = nn.Linear(3, 2).double()
    flags = ["--learning_rate=0.5", "--weight_decay=0.1"]
    check(net, parse(flags), lambda w, g: (0.5, g + 0.1 * w))


def test_lars_against_its_formula():
    """You et al., 2017: trust eta |w| / (|g| + d |w|) on matrices; plain momentum on the rest."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    flags = ["--learning_rate=0.5", "--lr_scaling=none", "--weight_decay=0.1"]

    def rate_and_gradient(w, g):
        if w.ndim == 1:
            return 0.5 * 0.016, g
        return 0.5, 0.02 * w.norm() / (g.norm() + 0.1 * w.norm()) * (g + 0.1 * w)

    check(net.double(), parse(["--preset=imagenet100-400", *flags]), rate_and_gradient)


def check(net, settings, rate_and_gradient):
    """Compare three steps of an optimiser with SGD with momentum 0.9 on other gradients."""
    optimizer = make_optimizer(net, settings)
    parameters = list(net.parameters())
    expected = [p.detach().clone() for p in parameters]
    momentum = [torch.zeros_like(w) for w in expected]
    for _ in range(3):
        for i, w in enumerate(expected):
            parameters[i].grad = torch.randn_like(w)
            rate, gradient = rate_and_gradient(w, parameters[i].grad.clone())
            momentum[i] = 0.9 * momentum[i] + gradient
            expected[i] = w - rate * momentum[i]
        optimizer.step()
    torch.testing.assert_close(parameters, expected, rtol=1e-9, atol=1e-12, check_stride=False)


def test_barlow_twins_has_lightlys_rates():
    """Those of its benchmark on ImageNet-1K at batch 256; biases and norms have their own."""
    optimizer = make_optimizer(nn.Linear(2, 2), parse(["--preset=imagenet1k-barlow-twins"]))
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([0.2, 0.0048])


def test_the_batch_of_a_preset_is_fitted_to_few_images():
    settings = parse(["--preset=cifar10"])  # of 128
    assert fit_batch(settings, 19, 2).training.train_batch_size == 18
    assert fit_batch(settings, 129, 2) == settings
    with_batch = parse(["--preset=cifar10", "--train_batch_size=64"])
    assert fit_batch(with_batch, 19, 2) == with_batch
    with pytest.raises(ParameterError, match="dataset"):
        fit_batch(settings, 1, 1)


def on(processes, device):
    """What an accelerator says of the processes of a launch."""
    return SimpleNamespace(num_processes=processes, device=torch.device(device))


def test_batch_statistics_are_synchronised_on_several_gpus():
    """The meta device stands for a GPU."""
    norm = nn.Sequential(nn.BatchNorm1d(2))
    on_device(norm, VisionSettings(), on(2, "meta"))
    vision = VisionSettings(sync_batchnorm=True)
    on_device(norm, vision, on(1, "meta"))
    assert type(norm[0]) is nn.BatchNorm1d
    with pytest.raises(ParameterError, match="sync_batchnorm"):
        on_device(norm, vision, on(2, "cpu"))
    on_device(norm, vision, on(2, "meta"))
    assert type(norm[0]) is nn.SyncBatchNorm


def test_a_queue_on_several_processes_needs_synchronised_statistics():
    with pytest.raises(ParameterError, match="sync_batchnorm"):
        make_objective(parse(["--loss=queue(0.1)"]), on(2, "meta"))


def test_a_queue_of_another_width_is_refused():
    with pytest.raises(ParameterError, match="64"):
        QueueInfoNCELoss(0.2, dim=64).start(128)


SHORT = "--preset=quickstart --max_train_samples=64 --train_batch_size=16 --out_dim=8 --knn_k=0"


@pytest.mark.parametrize(
    "loss", ["ntxent(0.1)", "queue(0.2)", "w_mse()", "zero_cl()", "byol()", "dino()"]
)
def test_a_step(loss, tmp_path, monkeypatch):
    """With every tensor but the images on the meta device, for want of a GPU."""
    leave_autocast_out(monkeypatch)
    output = f"--output_dir={tmp_path / 'out'}"
    settings = parse([*SHORT.split(), f"--loss={loss}", output, "--blur=true"])
    task = prepare_run(settings, make_accelerator(settings.training)).task
    shares_head = loss == "dino()"
    assert getattr(task, "head_in_teacher", shares_head) == shares_head
    to_meta(task)
    # torch's fused optimisers do not know the meta device
    assert step(task, 16, lambda network: torch.optim.SGD(network.parameters(), 0.1)).device == META


def test_areas_of_small_crops_end_where_those_of_large_ones_begin():
    options = {"loss": "dino()", "small_crops": 3, "small_crop_size": 16, "min_scale": 0.3}
    settings = PretrainSettings.of({"dataset": "shapes", **options})
    image_input = ImageInput(32, 1.0, (0.5,) * 3, (0.25,) * 3)
    views = make_views(settings, colour_images(4), image_input)
    assert views.augment.crop == RandomCrop(32, 0.3, 1.0)
    assert views.others == ((replace(views.augment, crop=RandomCrop(16, 0.05, 0.3)), 3),)
