"""What settings make: each preset's objective, optimisers, a step. tests/test_paper_rows.py has
presets' numbers.
"""

import warnings

import pytest
import torch
from meta_cases import META, leave_autocast_out, step, to_meta
from torch import nn
from vision_cases import ONE_PROCESS

from dystress_text.errors import ParameterError
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.settings import TrainingSettings
from vision.pretraining.build_task import make_optimizer, objective_of
from vision.pretraining.presets import PRESETS
from vision.pretraining.run import check_batch, make_task
from vision.pretraining.settings import VisionSettings
from vision.train import parse


def test_presets_are_valid():
    for name, preset in PRESETS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several of the paper's profiles have a falling logit
            settings = parse(["--preset", name])
        assert set(preset.settings) <= set(settings.options()), name
        assert (settings.preset, settings.training.output_dir) == (name, "out_vision")
        assert str(settings.loss) == preset.settings.get("loss", settings.vision.loss)
        objective_of(settings, ONE_PROCESS)
        check_batch(settings, settings.training.train_batch_size, 1)


def test_one_image_a_process_has_no_batch_statistics():
    with pytest.raises(ParameterError, match=r"^train_batch_size: "):
        check_batch(parse(["--preset=cifar10"]), 2, 2)
    check_batch(parse(["--preset=cifar10", "--sync_batchnorm=true"]), 2, 2)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("sqrt", 8), ("linear", 0.25)])
def test_the_rate_is_scaled_to_the_batch(scaling, factor):
    vision = VisionSettings(lr_scaling=scaling)
    optimizer = make_optimizer(nn.Linear(2, 2), TrainingSettings(learning_rate=0.075), vision, 64)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.075 * factor)


@pytest.mark.parametrize(("eta", "ratio"), [(0.001, 1.0), (0.02, 0.016)])
def test_lars_against_its_formula(eta, ratio):
    """You et al., 2017: trust eta |w| / (|g| + d |w|) on kernels and matrices; plain momentum on
    the rest.
    """
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)
    ).double()
    training = TrainingSettings(learning_rate=0.5, weight_decay=0.1)
    optimizer = make_optimizer(
        net,
        training,
        VisionSettings(optimizer="lars", trust_coefficient=eta, bias_lr_ratio=ratio),
        batch_size=64,
    )
    expected = [p.detach().clone() for p in net.parameters()]
    momentum = [torch.zeros_like(w) for w in expected]
    for _ in range(3):
        for i, parameter in enumerate(net.parameters()):
            g = torch.randn_like(parameter)
            parameter.grad, w = g.clone(), expected[i]
            if g.ndim > 1:
                g = eta * w.norm() / (g.norm() + 0.1 * w.norm()) * (g + 0.1 * w)
            momentum[i] = 0.9 * momentum[i] + g
            expected[i] = w - (0.5 if g.ndim > 1 else 0.5 * ratio) * momentum[i]
        optimizer.step()
    torch.testing.assert_close(
        [*net.parameters()], expected, rtol=1e-9, atol=1e-12, check_stride=False
    )


SHORT = "--preset=quickstart --max_train_samples=64 --train_batch_size=16 --out_dim=8 --knn_k=0"


@pytest.mark.parametrize(
    "loss", ["ntxent(0.1)", "queue(0.2)", "vicreg()", "w_mse()", "zero_cl()", "byol()", "dino()"]
)
def test_a_step(loss, tmp_path, monkeypatch):
    """With every tensor but the images on the meta device, for want of a GPU."""
    leave_autocast_out(monkeypatch)
    settings = parse(
        [*SHORT.split(), f"--loss={loss}", f"--output_dir={tmp_path / 'out'}", "--blur=true"]
    )
    task, _ = make_task(settings, make_accelerator(settings.training))
    to_meta(task)
    # torch's fused optimisers do not know the meta device
    loss = step(task, 16, lambda network: torch.optim.SGD(network.parameters(), 0.1))
    assert loss.device == META
