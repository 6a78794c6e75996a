"""Named recipes of pre-training, each with its table and row in the paper.

docs/reproduction.md lists the choices where the paper is silent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dystress_text.cli.presets import Preset
from vision.data import AT_IMAGENET_SCALE

Options = dict[str, Any]
Presets = dict[str, Preset]

_CIFAR: Options = {
    "architecture": "resnet18",
    "stem": "cifar",
    "projector": "cifar",
    "out_dim": 128,
    "image_size": 32,
    "min_scale": 0.08,  # SimCLR's, also on CIFAR
    "optimizer": "sgd",
    "learning_rate": 0.06,
    "weight_decay": 5e-4,
    "lr_scheduler_type": "cosine",
    "train_batch_size": 128,
    "num_train_epochs": 200,
    "max_grad_norm": 0.0,
    "eval_steps": 3900,
    "knn_k": 200,
    "mixed_precision": "no",
    "one_pass": False,  # as the authors' code
}
_IMAGENET100: Options = {
    "stem": "imagenet",
    "architecture": "resnet50",
    "projector": "simclr",
    "image_size": 224,
    **AT_IMAGENET_SCALE,
    "optimizer": "lars",
    "learning_rate": 0.075,
    "lr_scaling": "sqrt",
    "weight_decay": 1e-6,
    "lr_scheduler_type": "cosine",
    "max_grad_norm": 0.0,
    "knn_k": 20,
    "out_dim": 128,
    "one_pass": True,
    "dataset": "imagenet100",
    "train_batch_size": 256,
    "num_train_epochs": 200,
    "warmup_ratio": 0.05,
    "eval_steps": 4940,
}
_IMAGENET1K: Options = {
    **_IMAGENET100,
    "dataset": "imagenet1k",
    "num_train_epochs": 100,
    "warmup_ratio": 0.1,
    "eval_steps": 50040,
}
# of Zero-CL and ARB, as far as options have them
_LONG: Options = {
    **_IMAGENET100,
    "train_batch_size": 128,
    "num_train_epochs": 400,
    "warmup_ratio": 0.025,
    "eval_steps": 0,
    "learning_rate": 0.3,
    "lr_scaling": "linear",
    "jitter": 1.0,
    "one_pass": False,
}


def _ntxent(temperature: str) -> Options:
    return {"loss": f"ntxent({temperature})"}


def _cosine(low: float, high: float) -> Options:
    return _ntxent(f"cosine({low:g}, {high:g})")


def _shifted(low: float, high: float, shift: float) -> Options:
    return _ntxent(f"shifted_cosine({low:g}, {high:g}, shift={shift:g})")


def _row(rows: str, options: Options) -> Preset:
    """Return the preset for rows of the paper's tables, each ``table: name``."""
    return Preset(f"Table {rows}", options)


_SCHEDULE: Options = {"loss": "ntxent(scheduled(0.1, 1, half_period=200, unit='epoch'))"}
# lightly's defaults: tau_0 0.1, alpha 0.5, a_0 0
_MACL: Options = {"loss": "macl(alignment_adaptive(0.1, alpha=0.5, a_0=0), both_views=True)"}
_DCL: Options = {"loss": "dcl(0.1, per_view=True)"}  # lightly's before June 2025, and the authors'
_DCLW: Options = {"loss": "dclw(0.1, sigma=0.5, per_view=True)"}
_BARLOW_TWINS: Options = {"loss": "barlow_twins(off_diagonal=0.0051)", "projector": "expander"}
_VICREG: Options = {
    "loss": "vicreg(invariance=25, variance=25, covariance=1)",
    "projector": "expander",
}
_BYOL: Options = {"loss": "byol()", "projector": "byol", "key_momentum": 0.99}
_DINO: Options = {"loss": "dino(prototypes=4096)", "out_dim": 256, "key_momentum": 0.996}


def _cifar(data: str) -> Presets:
    """Return the presets of CIFAR's tables with 200 epochs, and of the paper's figures on CIFAR."""
    common: Options = _CIFAR | {"dataset": data}
    wide: Options = common | {"train_batch_size": 256, "eval_steps": 1950}
    ours = _cosine(0.07, 0.2)
    queue: Options = {"loss": "queue(0.1, queue_size=4096)", "key_momentum": 0.99}
    w_mse: Options = {"loss": "w_mse()", "out_dim": 64}
    linear = _ntxent("linear(0.07, 0.2)")
    exponential = _ntxent("exponential(0.07, 0.2, sharpness=3.5)")  # the sharpness is ours
    monotonic = _ntxent("monotonic_cosine(0.07, 0.2)")
    main = "cifar10n100_bal_bs128_sgd0p1_200eps"
    geometry = "unifalginmentmetrics"
    presets = {
        data: _row(f"{main}: DySTreSS; {geometry}: DySTreSS", common | ours),
        # the temperatures of the other methods are ours
        f"{data}-simclr": _row(f"{main}: SimCLR; {geometry}: SimCLR", common | _ntxent("0.2")),
        f"{data}-moco": _row(f"{main}: MoCo v2; {geometry}: MoCo v2", common | queue),
        f"{data}-dcl": _row(f"{main}: SimCLR+DCL; {geometry}: DCL", common | _DCL),
        f"{data}-macl": _row(f"{main}: MACL (repro.)", common | _MACL),
        f"{data}-dclw": _row(f"{geometry}: DCLW", common | _DCLW),
        f"{data}-256": _row("otherframecifar: DySTreSS", wide | ours),
        # projector and optimiser of both are ours; no small crops, as lightly's on CIFAR
        f"{data}-256-dino": _row("otherframecifar: DINO", wide | _DINO),
        f"{data}-256-w-mse": _row("otherframecifar: W-MSE", wide | w_mse),
        f"{data}-cosine": _row("abltempfunc: cosine; monotony: cosine", common | ours),
        f"{data}-linear": _row("abltempfunc: linear", common | linear),
        f"{data}-exponential": _row("abltempfunc: exponential", common | exponential),
        f"{data}-monotonic": _row("monotony: monotonic cosine", common | monotonic),
    }
    for name, options in _cifar_ablations().items():
        presets[f"{data}-{name}"] = Preset("an ablation in a figure of the paper", common | options)
    return presets


def _cifar_ablations() -> dict[str, Options]:
    """Return the options that each ablation changes, by the end of its preset's name."""
    ablations: dict[str, Options] = {}
    for low in (0.05, 0.07, 0.1, 0.2):
        for high in (0.1, 0.2, 0.5):
            if low <= high:
                ablations[f"range-{low}-{high}"] = _cosine(low, high)
    for shift in (0.2, 0.4):  # versions a and b of the paper's shifted minimum
        ablations[f"shift-v1-{shift}"] = _shifted(0.07, 0.2, shift)
        ablations[f"shift-v2-{shift}"] = _shifted(0.07, 0.2, -shift)
        ablations[f"shift-v3-{shift}"] = _ntxent(f"one_sided_cosine(0.07, 0.2, shift={shift:g})")
    for rate in (0.01, 0.03, 0.06, 0.1, 0.3, 0.5):
        ablations[f"lr-{rate}"] = {**_cosine(0.07, 0.2), "learning_rate": rate}
    return ablations


def _long_tailed_cifar(data: str, table: str) -> Presets:
    """Return the presets of the tables of a long-tailed CIFAR."""
    common: Options = _CIFAR | {"dataset": data, "eval_steps": 0, "num_train_epochs": 500}
    long: Options = {  # the configuration of Kukleva et al.'s code
        **common,
        "num_train_epochs": 2000,
        "warmup_ratio": 0.005,
        "learning_rate": 0.5,
        "train_batch_size": 512,
        "weight_decay": 1e-4,
        "min_scale": 0.1,
        "one_pass": True,
    }
    ours = _cosine(0.07, 0.2)
    return {
        data: _row(f"{table}: DySTreSS", common | ours),
        f"{data}-simclr": _row(f"{table}: SimCLR", common | _ntxent("0.2")),  # our temperature
        f"{data}-star": _row(f"{table}: DySTreSS*", common | _cosine(0.1, 0.2)),
        f"{data}-2000": _row("compkuklevacifar: DySTreSS", long | ours),
        f"{data}-2000-schedule": _row("compkuklevacifar: Kukleva et al.", long | _SCHEDULE),
    }


_SHARED: dict[str, Options] = {
    # methods of the tables of ImageNet100 and ImageNet-1K, as lightly's benchmark has them
    "SimCLR": _ntxent("0.1"),
    "DCL": _DCL,
    "BYOL": _BYOL | {"out_dim": 256, "one_pass": False},
    "Barlow Twins": _BARLOW_TWINS | {"out_dim": 8192},
    "VICReg": _VICREG | {"out_dim": 8192},
    "MACL": _MACL,
}


def _imagenet100() -> Presets:
    """Return the presets of ImageNet100 with 200 epochs."""
    ours = _cosine(0.1, 0.2)
    main = "in100_bal_bs256_lars_200eps"
    presets = {"imagenet100": _row(f"{main}: DySTreSS", _IMAGENET100 | ours)}
    for method, options in _SHARED.items():
        name = _named("imagenet100", method)
        presets[name] = _row(f"{main}: {method}", _IMAGENET100 | options)
    for low, high in ((0.07, 0.1), (0.07, 0.5), (0.07, 0.2), (0.1, 0.2)):
        name = f"imagenet100-range-{low}-{high}"
        presets[name] = _row(f"temprange_abl: {low}/{high}", _IMAGENET100 | _cosine(low, high))
    half_widths = {0.0: 0.5, 0.2: 0.6, 0.4: 0.7, -0.2: 0.6, -0.4: 0.7}
    for shift, half_width in half_widths.items():
        rows = f"tempprof_abl: {shift}/{half_width}"
        if shift == -0.4:
            rows += f"; {main}: DySTreSS*"
        options = _shifted(0.1, 0.2, shift)
        presets[f"imagenet100-shift{shift:+}"] = _row(rows, _IMAGENET100 | options)
    text_only = {"loss": "dcl(cosine(0.1, 0.2), per_view=True, detach_temperature=False)"}
    presets["imagenet100-dcl-cosine"] = Preset(
        "the text's DySTreSS on SimCLR+DCL, which no table has", _IMAGENET100 | text_only
    )
    # epochs and batch are the text's, the jitter Kukleva et al.'s, LARS that of ImageNet100
    tail: Options = {
        **_IMAGENET100,
        "dataset": "imagenet100_lt",
        "num_train_epochs": 2000,
        "warmup_ratio": 0.005,
        "eval_steps": 0,
        "jitter": 1.0,
    }
    table = "compkuklevain100lt"
    presets["imagenet100-lt"] = _row(f"{table}: DySTreSS", tail | ours)
    presets["imagenet100-lt-schedule"] = _row(f"{table}: Kukleva et al. (repro.)", tail | _SCHEDULE)
    return presets


def _named(data: str, method: str) -> str:
    return f"{data}-{method.lower().replace(' ', '-')}"


def _imagenet1k() -> Presets:
    """Return the presets of ImageNet-1K.

    The paper's figures for the other methods are lightly's. At batch 256, their learning rate and
    weight decay are lightly's unless they are those of SimCLR.
    """
    rates: dict[str, Options] = {
        "BYOL": {"learning_rate": 0.45, "lr_scaling": "linear"},
        "Barlow Twins": {"learning_rate": 0.2, "lr_scaling": "linear", "weight_decay": 1.5e-6},
        "VICReg": {"learning_rate": 0.5, "lr_scaling": "linear"},
    }
    main = "in1k_bal_bs256_lars_100eps"
    geometry = "unifalginmentmetrics"
    transfer = "transferlearning"
    rows = f"{main}: DySTreSS; {geometry}: DySTreSS; {transfer}: DySTreSS"
    presets = {"imagenet1k": _row(rows, _IMAGENET1K | _cosine(0.1, 0.2))}
    for method, options in (_SHARED | {"DCLW": _DCLW}).items():
        rows = f"{main}: {method}"
        if method in ("SimCLR", "DCL", "DCLW"):
            rows += f"; {geometry}: {method}"
        if method in ("SimCLR", "DCL"):
            rows += f"; {transfer}: {method}"
        name = _named("imagenet1k", method)
        presets[name] = _row(rows, _IMAGENET1K | options | rates.get(method, {}))
    return presets


def _without_negatives() -> Presets:
    """Return the presets of the paper's table ``otherframein100``, with its projector widths."""
    wide: Options = {"projector": "expander", "out_dim": 2048}
    small_crops: Options = {"min_scale": 0.14, "small_crops": 6, "small_crop_size": 96}  # lightly's
    # a batch of 128 cannot be whitened in the table's 256 dimensions
    narrow: Options = {"projector": "simclr", "out_dim": 64}
    methods: dict[str, Options] = {
        "DySTreSS": _cosine(0.1, 0.2) | wide,
        "Barlow Twins": _BARLOW_TWINS | wide,
        "VICReg": _VICREG | wide,
        "Zero-ICL": {"loss": "zero_icl()", **wide, "out_dim": 256},
        "Zero-FCL": {"loss": "zero_fcl()", **wide},
        "Zero-CL": {"loss": "zero_cl()", **wide},
        "W-MSE": {"loss": "w_mse()", **narrow},
        "ARB": {"loss": "arb()", **wide, "weight_decay": 1e-4},
        "DINO": _DINO | {"projector": "simclr", **small_crops},
        "BYOL": _BYOL | {"out_dim": 4096},  # the table's, as hidden and output width
    }
    presets: Presets = {}
    for method, options in methods.items():
        name = _named("imagenet100-400", method)
        presets[name] = _row(f"otherframein100: {method}", _LONG | options)
    presets["imagenet100-400"] = presets.pop("imagenet100-400-dystress")
    return presets


class LarsRates(NamedTuple):
    """How LARS scales the learning rate."""

    trust_coefficient: float = 0.001  # eta, the rate of a matrix by its norm
    biases: float = 1.0  # rate of biases and normalisation layers, times learning_rate


# the rates of presets that do not have the usual ones: those of Zero-CL, ARB and lightly
LARS_RATES = {
    **dict.fromkeys(_without_negatives(), LarsRates(0.02, 0.016)),
    "imagenet100-400-arb": LarsRates(0.001, 0.016),
    "imagenet1k-barlow-twins": LarsRates(biases=0.0048 / 0.2),  # lightly's
}

OWN_PHOTOS = "own-photos"
PRESETS: Presets = {
    OWN_PHOTOS: Preset(
        "20 photos or more of your own, with or without classes, in minutes without a GPU; no row "
        "of the paper",
        {
            **_cosine(0.1, 0.2),
            "dataset": "photos",
            "architecture": "resnet18",
            "stem": "imagenet",
            "projector": "simclr",
            "out_dim": 128,
            "image_size": 96,
            "min_scale": 0.2,
            "optimizer": "adamw",
            "learning_rate": 1e-3,
            "weight_decay": 1e-4,
            "lr_scheduler_type": "cosine",
            "warmup_ratio": 0.05,
            "train_batch_size": 64,
            "max_steps": 200,
            "eval_steps": 0,
            "knn_k": 5,
            "held_out": 200,
            "one_pass": True,
        },
    ),
    **_cifar("cifar10"),
    **_cifar("cifar100"),
    **_long_tailed_cifar("cifar10_lt", "cifar10lt"),
    **_long_tailed_cifar("cifar100_lt", "cifar100lt"),
    **_imagenet100(),
    **_imagenet1k(),
    **_without_negatives(),
    "tiny_imagenet": Preset(
        "the Tiny-ImageNet recipe of the appendix, 200-NN; the paper has no table of it",
        {
            **_CIFAR,
            **_cosine(0.07, 0.2),
            "dataset": "tiny_imagenet",
            "image_size": 64,
            "eval_steps": 7810,
            "architecture": "resnet50",
            "stem": "imagenet",  # "the original ResNet50"
        },
    ),
    "quickstart": Preset(
        "no network, no GPU: a narrow ResNet on shapes drawn at run time; no row of the paper",
        {
            **_CIFAR,
            **_cosine(0.07, 0.2),
            "dataset": "shapes",
            "architecture": "resnet10_narrow",
            "stem": "imagenet",
            "image_size": 24,
            "min_scale": 0.2,
            "optimizer": "adamw",
            "learning_rate": 1e-3,
            "max_steps": 150,
            "eval_steps": 0,
            "knn_k": 20,
            "mixed_precision": "auto",
            "one_pass": True,
        },
    ),
}
