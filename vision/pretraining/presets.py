"""Named recipes of pre-training, each with its table and row of the paper."""

from __future__ import annotations

from typing import Any

from dystress_text.training.presets import Preset, listing
from vision.data.strength import AT_IMAGENET_SCALE
from vision.pretraining.loss_defaults import VISION

Options = dict[str, Any]

_CIFAR: Options = {
    "architecture": "resnet18", "stem": "cifar", "projector": "cifar", "out_dim": 128, "image_size": 32,
    "optimizer": "sgd", "learning_rate": 0.06, "weight_decay": 5e-4, "lr_scheduler_type": "cosine",
    "train_batch_size": 128, "num_train_epochs": 200, "max_grad_norm": 0.0, "eval_steps": 3900, "knn_k": 200,
}  # fmt: skip
_LARS: Options = {
    "stem": "imagenet", "architecture": "resnet50", "projector": "simclr", "image_size": 224, **AT_IMAGENET_SCALE,
    "optimizer": "lars", "learning_rate": 0.075, "lr_scaling": "sqrt", "weight_decay": 1e-6,
    "lr_scheduler_type": "cosine", "max_grad_norm": 0.0, "knn_k": 20, "out_dim": 128,
}  # fmt: skip
_IMAGENET100: Options = {
    **_LARS, "dataset": "imagenet100", "train_batch_size": 256, "num_train_epochs": 200, "warmup_ratio": 0.05,
    "eval_steps": 4940,
}  # fmt: skip
_IMAGENET1K: Options = {
    **_LARS, "dataset": "imagenet1k", "train_batch_size": 256, "num_train_epochs": 100, "warmup_ratio": 0.1,
    "eval_steps": 50040,
}  # fmt: skip
_TINY: Options = {
    **_CIFAR,
    "dataset": "tiny_imagenet",
    "architecture": "resnet50",
    "stem": "imagenet",  # "the original ResNet50"
    "image_size": 64,
    "eval_steps": 7810,
}
_SCHEDULE: Options = {"temperature": "scheduled", "tau_min": 0.1, "tau_max": 1.0, "half_period": 200, "unit": "epoch"}


def _cosine(low: float, high: float) -> Options:
    return {"temperature": "cosine", "tau_min": low, "tau_max": high}


def _constant(tau: float) -> Options:
    return {"temperature": "constant", "temp": tau}


def _shifted(low: float, high: float, shift: float, scale: float) -> Options:
    return {"temperature": "shifted_cosine", "tau_min": low, "tau_max": high, "shift": shift, "scale": scale}


_MACL: Options = {"objective": "macl", **VISION.alignment}
_WIDE: Options = {"projector": "expander", "out_dim": 2048}
# the rows of the ImageNet tables: row, whose the hyper-parameters are (optimiser and schedule are always those of
# DySTreSS), and options
_METHODS: dict[str, tuple[str, Options]] = {
    "": ("DySTreSS", _cosine(0.1, 0.2)),
    "-simclr": ("SimCLR (the temperature is ours)", _constant(0.2)),
    "-dcl": ("DCL (the temperature is ours)", {"objective": "dcl", **_constant(0.2)}),
    "-dclw": ("DCLW (temperature and sigma are ours)", {"objective": "dclw", **_constant(0.2)}),
    "-macl": ("MACL (its temperature's parameters are ours)", _MACL),
    "-barlow-twins": ("Barlow Twins (projector ours, lambda 0.0051 its paper's)",
                      {"objective": "barlow_twins", **_WIDE}),
    "-vicreg": ("VICReg (projector ours, weights 25, 25 and 1 its paper's)", {"objective": "vicreg", **_WIDE}),
    "-zero-icl": ("ZeroICL (projector ours, shrinkage 0.1 its authors')",
                  {"objective": "zero_icl", "projector": "byol", "out_dim": 256}),
    "-zero-fcl": ("ZeroFCL (projector ours, shrinkage 0.1 its authors')", {"objective": "zero_fcl", **_WIDE}),
    "-zero-cl": ("ZeroCL (projector and the parts' weights ours, shrinkage 0.1 its authors')",
                 {"objective": "zero_cl", **_WIDE}),
    "-w-mse": ("WMSE (projector and its 64 dimensions ours: a batch of 128 cannot be whitened in the table's 256)",
               {"objective": "w_mse", "projector": "simclr", "out_dim": 64}),
    "-arb": ("ARB (projector and groups of 64 features ours)", {"objective": "arb", **_WIDE}),
    "-dino": ("DINO (projector, 4,096 prototypes and two crops alone ours, momentum and temperatures its paper's)",
              {"objective": "dino", "projector": "simclr", "out_dim": 256, "key_momentum": 0.996}),
    "-byol": ("BYOL (momentum ours, widths 4096 and 256 its paper's)",
              {"objective": "byol", "projector": "byol", "out_dim": 256, "key_momentum": 0.99}),
}  # fmt: skip


def _cifar_rows() -> dict[str, Preset]:
    """Table cifar10n100_bal_bs128_sgd0p1_200eps, and the ablations of temperature function and monotony."""
    table = "Table cifar10n100_bal_bs128_sgd0p1_200eps"
    rows: dict[str, tuple[str, Options, tuple[float, float]]] = {
        "": (f"{table}, row DySTreSS", _cosine(0.07, 0.2), (85.68, 56.57)),
        "-simclr": (f"{table}, row SimCLR (the temperature 0.2 is ours)", _constant(0.2), (83.65, 52.32)),
        "-moco": (
            f"{table}, row MoCo v2 (queue, momentum and temperature are the usual ones)",
            {"objective": "queue", "queue_size": 4096, "key_momentum": 0.99, **_constant(0.1)},
            (83.9, 54.01),
        ),
        "-dcl": (
            f"{table}, row SimCLR+DCL (the temperature is ours)",
            {"objective": "dcl", **_constant(0.1)},
            (84.4, 56.02),
        ),
        "-macl": (f"{table}, row MACL (its temperature's parameters are ours)", _MACL, (84.85, 56.15)),
        "-dclw": (
            "Table unifalginmentmetrics, row DCLW (temperature and sigma are ours)",
            {"objective": "dclw", **_constant(0.1)},
            (84.02, 55.87),
        ),
        "-256": (
            "Table otherframecifar (against DINO and W-MSE, batch 256), row DySTreSS",
            {**_cosine(0.07, 0.2), "train_batch_size": 256, "eval_steps": 1950},
            (85.68, 56.57),
        ),
        "-256-dino": (
            "Table otherframecifar, row DINO (projector, 4,096 prototypes and two crops alone are ours)",
            {"objective": "dino", "out_dim": 256, "key_momentum": 0.996, "train_batch_size": 256, "eval_steps": 1950},
            (84.02, 46.79),
        ),
        "-256-w-mse": (
            "Table otherframecifar, row WMSE (projector and optimiser are ours, 64 dimensions its paper's)",
            {"objective": "w_mse", "out_dim": 64, "train_batch_size": 256, "eval_steps": 1950},
            (85.52, 52.72),
        ),
        "-cosine": ("Table abltempfunc, row cosine", _cosine(0.07, 0.2), (85.85, 56.57)),
        "-linear": ("Table abltempfunc, row linear", {**_cosine(0.07, 0.2), "temperature": "linear"}, (85.74, 56.78)),
        "-exponential": (
            "Table abltempfunc, row exponential",
            {**_cosine(0.07, 0.2), "temperature": "exponential"},
            (85.81, 56.47),
        ),
        "-monotonic": (
            "Table monotony, row monotonic cosine",
            {**_cosine(0.07, 0.2), "temperature": "monotonic_cosine"},
            (85.84, 56.21),
        ),
    }  # fmt: skip
    return {
        f"{data}{suffix}": Preset(f"{where}: 200-NN {value[i]:.2f}", {**_CIFAR, "dataset": data, **options})
        for suffix, (where, options, value) in rows.items()
        for i, data in enumerate(("cifar10", "cifar100"))
    }


def _cifar_ablations() -> dict[str, Preset]:
    """What the paper shows as figures alone: ranges, shifts and learning rates on CIFAR."""
    presets = {}
    for data in ("cifar10", "cifar100"):
        base = {**_CIFAR, "dataset": data}
        for low in (0.05, 0.07, 0.1, 0.2):
            for high in (0.1, 0.2, 0.5):
                if low <= high:
                    presets[f"{data}-range-{low}-{high}"] = Preset(
                        "ablation of the range, a figure of the paper", {**base, **_cosine(low, high)}
                    )
        for shift, scale in ((0.2, 0.6), (0.4, 0.7)):
            for name, sign in (("v1", -1), ("v2", 1)):
                presets[f"{data}-shift-{name}-{shift}"] = Preset(
                    f"ablation of the shift, version {name[1]}, a figure of the paper",
                    {**base, **_shifted(0.07, 0.2, sign * shift, scale)},
                )
            presets[f"{data}-shift-v3-{shift}"] = Preset(
                "ablation of the shift, the one-sided version 3, a figure of the paper",
                {**base, **_cosine(0.07, 0.2), "temperature": "one_sided_cosine", "shift": shift},
            )
        for rate in (0.01, 0.03, 0.06, 0.1, 0.3, 0.5):
            presets[f"{data}-lr-{rate}"] = Preset(
                "ablation of the learning rate, a figure of the paper",
                {**base, **_cosine(0.07, 0.2), "learning_rate": rate},
            )
    return presets


def _long_tailed_rows() -> dict[str, Preset]:
    presets = {}
    values = {
        "cifar10_lt": ("cifar10lt", (57.12, 55.29), (58.36, 56.4), (58.34, 56.54)),
        "cifar100_lt": ("cifar100lt", (28.27, 26.18), (29.43, 27.1), (28.82, 27.32)),
    }
    for data, (table, simclr, plain, starred) in values.items():
        base = {**_CIFAR, "dataset": data, "num_train_epochs": 500, "eval_steps": 0}
        for suffix, row, options, (one, ten) in (
            ("-simclr", "SimCLR (temperature 0.2 is ours)", _constant(0.2), simclr),
            ("", "DySTreSS", _cosine(0.07, 0.2), plain),
            ("-star", "DySTreSS*", _cosine(0.1, 0.2), starred),
        ):
            presets[f"{data}{suffix}"] = Preset(
                f"Table {table}, row {row}: 1-NN {one:.2f}, 10-NN {ten:.2f}", {**base, **options}
            )
        long = {**base, "num_train_epochs": 2000}
        ours, theirs = {"cifar10_lt": (64.98, 62.91), "cifar100_lt": (31.71, 30.2)}[data]
        presets[f"{data}-2000"] = Preset(
            f"Table compkuklevacifar, row DySTreSS: {ours:.2f}", {**long, **_cosine(0.07, 0.2)}
        )
        presets[f"{data}-2000-schedule"] = Preset(
            f"Table compkuklevacifar, row Kukleva et al.: {theirs:.2f}",
            {**long, **_SCHEDULE, "learning_rate": 0.5, "train_batch_size": 512},
        )
    return presets


def _imagenet_tables() -> dict[str, Preset]:
    """The tables of ImageNet100 and ImageNet-1k, with the methods without negatives: linear top-1."""
    long = {**_IMAGENET100, "train_batch_size": 128, "num_train_epochs": 400, "warmup_ratio": 0.025, "eval_steps": 0}
    tables: tuple[tuple[str, str, Options, dict[str, float]], ...] = (
        ("imagenet100", "in100_bal_bs256_lars_200eps", _IMAGENET100,
         {"": 78.78, "-simclr": 75.54, "-dcl": 77.38, "-macl": 78.28, "-byol": 75.02, "-barlow-twins": 75.88,
          "-vicreg": 76.36}),
        ("imagenet1k", "in1k_bal_bs256_lars_100eps", _IMAGENET1K,
         {"": 65.21, "-simclr": 63.2, "-dcl": 65.1, "-dclw": 64.2, "-macl": 64.3, "-byol": 62.4,
          "-barlow-twins": 62.9, "-vicreg": 63.0}),
        ("imagenet100-400", "otherframein100", long,
         {"-barlow-twins": 78.62, "-vicreg": 79.22, "-zero-icl": 78.02, "-zero-fcl": 79.32, "-zero-cl": 79.26,
          "-w-mse": 69.06, "-arb": 79.48, "-dino": 74.84, "-byol": 80.09}),
    )  # fmt: skip
    presets = {
        "imagenet100-400": Preset(
            "Table otherframein100 (against methods without negatives), row DySTreSS: linear top-1 81.24",
            {**long, **_cosine(0.1, 0.2), "out_dim": 2048},
        )
    }
    for start, table, base, figures in tables:
        for suffix, top1 in figures.items():
            row, options = _METHODS[suffix]
            about = f"Table {table}, row {row}: linear top-1 {top1:.2f}"
            presets[f"{start}{suffix}"] = Preset(about, {**base, **options})
    return presets


def _imagenet_ablations() -> dict[str, Preset]:
    """Tiny-ImageNet, the long tail, and the tables of temperature ranges and shifts."""
    lt = {**_IMAGENET100, "dataset": "imagenet100_lt", "num_train_epochs": 800, "warmup_ratio": 0.0125, "eval_steps": 0}
    presets = {
        "tiny_imagenet": Preset(
            "the Tiny-ImageNet recipe of the appendix, 200-NN; the paper has no table of it",
            {**_TINY, **_cosine(0.07, 0.2)},
        ),
        "imagenet100-lt": Preset("Table compkuklevain100lt, row DySTreSS: 46.10", {**lt, **_cosine(0.1, 0.2)}),
        "imagenet100-lt-schedule": Preset(
            "Table compkuklevain100lt, row Kukleva et al. (batch 256 is the paper's; LARS as for DySTreSS is our "
            "choice): 45.30",
            {**lt, **_SCHEDULE},
        ),
    }
    for low, high, top1 in ((0.07, 0.1, 77.28), (0.07, 0.5, 76.34), (0.07, 0.2, 78.46), (0.1, 0.2, 78.76)):
        presets[f"imagenet100-range-{low}-{high}"] = Preset(
            f"Table temprange_abl, row {low}/{high}: linear top-1 {top1}", {**_IMAGENET100, **_cosine(low, high)}
        )
    for shift, scale, top1 in (
        (0.0, 0.5, 78.46), (0.2, 0.6, 78.56), (0.4, 0.7, 78.46), (-0.2, 0.6, 78.78), (-0.4, 0.7, 78.82)
    ):  # fmt: skip
        presets[f"imagenet100-shift{shift:+}"] = Preset(
            f"Table tempprof_abl, row {shift}/{scale}: linear top-1 {top1}",
            {**_IMAGENET100, **_shifted(0.1, 0.2, shift, scale)},
        )
    return presets


PRESETS: dict[str, Preset] = {
    **_cifar_rows(),
    **_long_tailed_rows(),
    **_imagenet_tables(),
    **_imagenet_ablations(),
    **_cifar_ablations(),
    "quickstart": Preset(
        "no network, no GPU: a narrow ResNet on shapes drawn at run time; no row of the paper",
        {**_CIFAR, **_cosine(0.07, 0.2), "dataset": "shapes", "architecture": "resnet10_narrow", "stem": "imagenet",
         "image_size": 24, "optimizer": "adamw", "learning_rate": 1e-3, "max_steps": 150, "eval_steps": 0,
         "knn_k": 20},
    ),
}  # fmt: skip


if __name__ == "__main__":
    print("Images, vision/train.py --preset NAME:\n" + listing(PRESETS))
