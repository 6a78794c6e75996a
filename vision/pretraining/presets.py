"""Named recipes of pre-training, each with its table and row of the paper.

A line says in brackets what neither the paper nor, for its figures, lightly's benchmark has: what
is ours.
"""

from __future__ import annotations

from typing import Any

from dystress_text.training.presets import Preset
from vision.data.crops import AT_IMAGENET_SCALE
from vision.evaluation.paper import row_of, told

Options = dict[str, Any]

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
_LARS: Options = {
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
}
_IMAGENET100: Options = {
    **_LARS,
    "dataset": "imagenet100",
    "train_batch_size": 256,
    "num_train_epochs": 200,
    "warmup_ratio": 0.05,
    "eval_steps": 4940,
}
_IMAGENET1K: Options = {
    **_LARS,
    "dataset": "imagenet1k",
    "train_batch_size": 256,
    "num_train_epochs": 100,
    "warmup_ratio": 0.1,
    "eval_steps": 50040,
}
_TINY: Options = {
    **_CIFAR,
    "dataset": "tiny_imagenet",
    "image_size": 64,
    "eval_steps": 7810,
    "architecture": "resnet50",
    "stem": "imagenet",  # "the original ResNet50"
}
_SCHEDULE: Options = {"loss": "ntxent(scheduled(0.1, 1, half_period=200, unit='epoch'))"}


def _ntxent(temperature: str) -> Options:
    return {"loss": f"ntxent({temperature})"}


def _cosine(low: float, high: float) -> Options:
    return _ntxent(f"cosine({low:g}, {high:g})")


def _shifted(low: float, high: float, shift: float) -> Options:
    return _ntxent(f"shifted_cosine({low:g}, {high:g}, shift={shift:g})")


def _preset(settings: Options, note: str, *rows: tuple[str, str]) -> Preset:
    """A preset of the rows (table and name); its line has the figures of the first one and the
    note.
    """
    known = tuple(row_of(*row) for row in rows)
    line = told(known[0], settings["dataset"])
    if len(rows) > 1:
        line += f"; also of {', '.join(table for table, _ in rows[1:])}"
    if note:
        line += f" ({note})"
    return Preset(line, settings, known)


_MACL: Options = {"loss": "macl(0.1, alpha=0.5, a_0=0, both_views=True)"}
_MACL_NOTE = "ours: tau_0 0.1, alpha 0.5, a_0 0, lightly's defaults"
_DCL: Options = {"loss": "dcl(0.1, per_view=True)"}  # lightly's before June 2025, and the authors'
_DCLW: Options = {"loss": "dclw(0.1, sigma=0.5, per_view=True)"}
_GEOMETRY = "unifalginmentmetrics"
_TRANSFER = "transferlearning"


def _cifar_rows() -> dict[str, Preset]:
    """The tables of CIFAR with 200 epochs."""
    table = "cifar10n100_bal_bs128_sgd0p1_200eps"
    others = "otherframecifar"
    wide: Options = {"train_batch_size": 256, "eval_steps": 1950}
    rows: dict[str, tuple[Options, str, tuple[tuple[str, str], ...]]] = {
        "": (_cosine(0.07, 0.2), "", ((table, "DySTreSS"), (_GEOMETRY, "DySTreSS"))),
        "-simclr": (
            _ntxent("0.2"),
            "ours: temperature 0.2",
            ((table, "SimCLR"), (_GEOMETRY, "SimCLR")),
        ),
        "-moco": (
            {"loss": "queue(0.1, queue_size=4096)", "key_momentum": 0.99},
            "ours: temperature 0.1, momentum 0.99 and 4,096 keys, the usual ones",
            ((table, "MoCo v2"), (_GEOMETRY, "MoCo v2")),
        ),
        "-dcl": (_DCL, "ours: temperature 0.1", ((table, "SimCLR+DCL"), (_GEOMETRY, "DCL"))),
        "-macl": (_MACL, _MACL_NOTE, ((table, "MACL (repro.)"),)),
        "-dclw": (_DCLW, "ours: temperature 0.1 and sigma 0.5", ((_GEOMETRY, "DCLW"),)),
        "-256": ({**_cosine(0.07, 0.2), **wide}, "", ((others, "DySTreSS"),)),
        "-256-dino": (
            {"loss": "dino(prototypes=4096)", "out_dim": 256, "key_momentum": 0.996, **wide},
            "ours: projector, 4,096 prototypes, optimiser; no small crops, as in lightly's CIFAR "
            "benchmark",
            ((others, "DINO"),),
        ),
        "-256-w-mse": (
            {"loss": "w_mse()", "out_dim": 64, **wide},
            "ours: projector and optimiser; 64 dimensions are its paper's",
            ((others, "W-MSE"),),
        ),
        "-cosine": (_cosine(0.07, 0.2), "", (("abltempfunc", "cosine"), ("monotony", "cosine"))),
        "-linear": (_ntxent("linear(0.07, 0.2)"), "", (("abltempfunc", "linear"),)),
        "-exponential": (
            _ntxent("exponential(0.07, 0.2, sharpness=3.5)"),
            "ours: sharpness 3.5",
            (("abltempfunc", "exponential"),),
        ),
        "-monotonic": (
            _ntxent("monotonic_cosine(0.07, 0.2)"),
            "",
            (("monotony", "monotonic cosine"),),
        ),
    }
    return {
        f"{data}{suffix}": _preset({**_CIFAR, "dataset": data, **options}, note, *named)
        for suffix, (options, note, named) in rows.items()
        for data in ("cifar10", "cifar100")
    }


def _cifar_ablations() -> dict[str, Preset]:
    """What the paper shows as figures alone: ranges, shifts and learning rates on CIFAR."""
    ranges = [
        (low, high) for low in (0.05, 0.07, 0.1, 0.2) for high in (0.1, 0.2, 0.5) if low <= high
    ]
    named = {f"range-{low}-{high}": ("range", _cosine(low, high)) for low, high in ranges}
    for letter, shift in (("a", 0.2), ("b", 0.4)):  # the paper's versions of the shifted minimum
        named[f"shift-v1-{shift}"] = f"shift, version 1{letter}", _shifted(0.07, 0.2, shift)
        named[f"shift-v2-{shift}"] = f"shift, version 2{letter}", _shifted(0.07, 0.2, -shift)
        one_sided = _ntxent(f"one_sided_cosine(0.07, 0.2, shift={shift:g})")
        named[f"shift-v3-{shift}"] = f"shift, the one-sided version 3{letter}", one_sided
    for rate in (0.01, 0.03, 0.06, 0.1, 0.3, 0.5):
        named[f"lr-{rate}"] = "learning rate", {**_cosine(0.07, 0.2), "learning_rate": rate}
    return {
        f"{data}-{name}": Preset(
            f"ablation of the {what}, a figure of the paper", {**_CIFAR, "dataset": data, **options}
        )
        for data in ("cifar10", "cifar100")
        for name, (what, options) in named.items()
    }


def _long_tailed_rows() -> dict[str, Preset]:
    kukleva = "compkuklevacifar"
    about = "measure not named; configuration of Kukleva et al.'s code"
    theirs: Options = {
        "num_train_epochs": 2000,
        "warmup_ratio": 0.005,
        "learning_rate": 0.5,
        "train_batch_size": 512,
        "weight_decay": 1e-4,
        "min_scale": 0.1,
        "one_pass": True,
    }
    rows: dict[str, tuple[Options, str, str, str]] = {
        "-simclr": (_ntxent("0.2"), "ours: temperature 0.2", "", "SimCLR"),
        "": (_cosine(0.07, 0.2), "", "", "DySTreSS"),
        "-star": (_cosine(0.1, 0.2), "", "", "DySTreSS*"),
        "-2000": ({**theirs, **_cosine(0.07, 0.2)}, about, kukleva, "DySTreSS"),
        "-2000-schedule": ({**theirs, **_SCHEDULE}, about, kukleva, "Kukleva et al."),
    }
    return {
        f"{data}{suffix}": _preset(
            {**_CIFAR, "dataset": data, "num_train_epochs": 500, "eval_steps": 0, **options},
            note,
            (table or own, row),
        )
        for data, own in (("cifar10_lt", "cifar10lt"), ("cifar100_lt", "cifar100lt"))
        for suffix, (options, note, table, row) in rows.items()
    }


_BARLOW_TWINS = "barlow_twins(off_diagonal=0.0051)"
_VICREG = "vicreg(invariance=25, variance=25, covariance=1)"
_EXPANDER: Options = {"projector": "expander", "out_dim": 8192}
_AS_LIGHTLY = "the paper says no more than its rate; as lightly's on ImageNet: "
# lightly's ImageNet benchmark of ResNet-50, whose figures the paper prints for ImageNet-1K: the
# row, lightly's options, its rate and decay at batch 256 where they are not SimCLR's, and what the
# line says
_PEERS: dict[str, tuple[str, Options, Options, str]] = {
    "-simclr": ("SimCLR", _ntxent("0.1"), {}, "temperature 0.1"),
    "-dcl": ("DCL", _DCL, {}, "temperature 0.1"),
    "-dclw": ("DCLW", _DCLW, {}, "temperature 0.1, sigma 0.5"),
    "-byol": (
        "BYOL",
        {
            "loss": "byol()",
            "projector": "byol",
            "out_dim": 256,
            "key_momentum": 0.99,
            "one_pass": False,
        },
        {"learning_rate": 0.45, "lr_scaling": "linear"},
        "momentum 0.99, widths 4,096 and 256; ours: SimCLR's augmentation",
    ),
    "-barlow-twins": (
        "Barlow Twins",
        {"loss": _BARLOW_TWINS, **_EXPANDER},
        {"learning_rate": 0.2, "lr_scaling": "linear", "weight_decay": 1.5e-6},
        "three layers of 8,192; ours: lambda 0.0051 for 0.005, one rate for all weights, SimCLR's "
        "augmentation",
    ),
    "-vicreg": (
        "VICReg",
        {"loss": _VICREG, **_EXPANDER},
        {"learning_rate": 0.5, "lr_scaling": "linear"},
        "layers of 8,192; ours: three for two, variance weight 25 a view for 12.5, rate down to 0, "
        "SimCLR's augmentation",
    ),
}


def _imagenet_tables() -> dict[str, Preset]:
    """The tables of ImageNet100 and ImageNet-1K: linear top-1 and top-5."""
    small = "in100_bal_bs256_lars_200eps"
    large = "in1k_bal_bs256_lars_100eps"
    elsewhere = {
        "-simclr": (_GEOMETRY, _TRANSFER),
        "-dcl": (_GEOMETRY, _TRANSFER),
        "-dclw": (_GEOMETRY,),
    }
    presets = {
        "imagenet100": _preset({**_IMAGENET100, **_cosine(0.1, 0.2)}, "", (small, "DySTreSS")),
        "imagenet1k": _preset(
            {**_IMAGENET1K, **_cosine(0.1, 0.2)},
            "",
            *((table, "DySTreSS") for table in (large, _GEOMETRY, _TRANSFER)),
        ),
        "imagenet100-macl": _preset({**_IMAGENET100, **_MACL}, _MACL_NOTE, (small, "MACL")),
        "imagenet1k-macl": _preset({**_IMAGENET1K, **_MACL}, _MACL_NOTE, (large, "MACL")),
        "imagenet100-dcl-cosine": Preset(
            "the text's DySTreSS on SimCLR+DCL: linear top-1 0.14 above a row of Table "
            "in100_bal_bs256_lars_200eps, which it does not name",
            {
                **_IMAGENET100,
                "loss": "dcl(cosine(0.1, 0.2), per_view=True, detach_temperature=False)",
            },
        ),
    }
    for suffix, (row, options, rate, in_words) in _PEERS.items():
        if suffix != "-dclw":  # the text has one rate for all methods
            note = _AS_LIGHTLY + in_words
            presets[f"imagenet100{suffix}"] = _preset(
                {**_IMAGENET100, **options}, note, (small, row)
            )
        note = "as lightly's, whose figure it is: "
        if "learning_rate" in rate:
            note += f"rate {rate['learning_rate']} at batch 256, "
        if "weight_decay" in rate:
            note += f"decay {rate['weight_decay']}, "
        presets[f"imagenet1k{suffix}"] = _preset(
            {**_IMAGENET1K, **options, **rate},
            note + in_words,
            *((table, row) for table in (large, *elsewhere.get(suffix, ()))),
        )
    return presets


# what options have of the conditions of Zero-CL and ARB, and in what they differ
_LONG: Options = {
    **_IMAGENET100,
    "train_batch_size": 128,
    "num_train_epochs": 400,
    "warmup_ratio": 0.025,
    "eval_steps": 0,
    "learning_rate": 0.3,
    "lr_scaling": "linear",
    "trust_coefficient": 0.02,
    "bias_lr_ratio": 0.016,
    "jitter": 1.0,
    "one_pass": False,
}
_NOT_THEIRS = (
    "not as Zero-CL and ARB: SimCLR's augmentation for both views, bilinear, and no "
    "zero_init_residual"
)
_WIDE: Options = {"projector": "expander", "out_dim": 2048}
_RIDGE = "ridge 0.01 is its authors'"
# the rows of otherframein100 at the table's widths
_WITHOUT_NEGATIVES: dict[str, tuple[str, Options, str]] = {
    "": ("DySTreSS", {**_cosine(0.1, 0.2), **_WIDE}, ""),
    "-barlow-twins": (
        "Barlow Twins",
        {"loss": _BARLOW_TWINS, **_WIDE},
        "lambda 0.0051 is its paper's",
    ),
    "-vicreg": ("VICReg", {"loss": _VICREG, **_WIDE}, "weights 25, 25 and 1 are its paper's"),
    "-zero-icl": ("Zero-ICL", {"loss": "zero_icl()", **_WIDE, "out_dim": 256}, _RIDGE),
    "-zero-fcl": ("Zero-FCL", {"loss": "zero_fcl()", **_WIDE}, _RIDGE),
    "-zero-cl": ("Zero-CL", {"loss": "zero_cl()", **_WIDE}, f"{_RIDGE}; ours: the parts' weights"),
    "-w-mse": (
        "W-MSE",
        {"loss": "w_mse()", "projector": "simclr", "out_dim": 64},
        "ours: two layers, and 64 dimensions, as a batch of 128 cannot be whitened in the table's "
        "256",
    ),
    "-arb": (
        "ARB",
        {"loss": "arb()", **_WIDE, "trust_coefficient": 0.001, "weight_decay": 1e-4},
        "one group, LARS with eta 0.001 and decay 1e-4, its authors'",
    ),
    "-dino": (
        "DINO",
        {
            "loss": "dino(prototypes=4096)",
            "projector": "simclr",
            "out_dim": 256,
            "key_momentum": 0.996,
            "min_scale": 0.14,
            "small_crops": 6,
            "small_crop_size": 96,
        },
        "six small crops and their areas as in lightly's benchmark of ResNet-50; ours: two layers, "
        "4,096 prototypes",
    ),
    "-byol": (
        "BYOL",
        {"loss": "byol()", "projector": "byol", "out_dim": 4096, "key_momentum": 0.99},
        "ours: the table's 4,096 for hidden and output width, where its paper's output has 256; "
        "momentum",
    ),
}


def _imagenet_ablations() -> dict[str, Preset]:
    """Tiny-ImageNet, the methods without negatives, the long tail, and the tables of temperature
    ranges and shifts.
    """
    lt = {
        **_IMAGENET100,
        "dataset": "imagenet100_lt",
        "num_train_epochs": 2000,
        "warmup_ratio": 0.005,
        "eval_steps": 0,
        "jitter": 1.0,
    }
    about_lt = (
        "measure not named; 2,000 epochs and batch 256 are the text's, the jitter Kukleva et "
        "al.'s; ours: LARS as on ImageNet100; images of the exponential profile, with --train_list "
        "Kukleva et al.'s 12,205"
    )
    presets = {
        f"imagenet100-400{suffix}": _preset(
            {**_LONG, **options},
            "; ".join(filter(None, (note, _NOT_THEIRS))),
            ("otherframein100", name),
        )
        for suffix, (name, options, note) in _WITHOUT_NEGATIVES.items()
    }
    presets |= {
        "tiny_imagenet": Preset(
            "the Tiny-ImageNet recipe of the appendix, 200-NN; the paper has no table of it",
            {**_TINY, **_cosine(0.07, 0.2)},
        ),
        "imagenet100-lt": _preset(
            {**lt, **_cosine(0.1, 0.2)}, about_lt, ("compkuklevain100lt", "DySTreSS")
        ),
        "imagenet100-lt-schedule": _preset(
            {**lt, **_SCHEDULE}, about_lt, ("compkuklevain100lt", "Kukleva et al. (repro.)")
        ),
    }
    for low, high in ((0.07, 0.1), (0.07, 0.5), (0.07, 0.2), (0.1, 0.2)):
        presets[f"imagenet100-range-{low}-{high}"] = _preset(
            {**_IMAGENET100, **_cosine(low, high)}, "", ("temprange_abl", f"{low}/{high}")
        )
    for shift, scale in ((0.0, 0.5), (0.2, 0.6), (0.4, 0.7), (-0.2, 0.6), (-0.4, 0.7)):
        starred = (("in100_bal_bs256_lars_200eps", "DySTreSS*"),) if shift == -0.4 else ()
        presets[f"imagenet100-shift{shift:+}"] = _preset(
            {**_IMAGENET100, **_shifted(0.1, 0.2, shift)},
            "",
            ("tempprof_abl", f"{shift}/{scale}"),
            *starred,
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
