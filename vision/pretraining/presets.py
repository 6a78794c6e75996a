"""Named recipes of pre-training, each with its table and row of the paper.

docs/reproduction.md says what they take where the paper is silent.
"""

from __future__ import annotations

from typing import Any

from dystress_text.training.presets import Preset
from vision.data.crops import AT_IMAGENET_SCALE

Options = dict[str, Any]
Recipes = dict[str, tuple[str, Options]]  # by name: rows, each ``table: name``, and options

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
    "trust_coefficient": 0.02,
    "bias_lr_ratio": 0.016,
    "jitter": 1.0,
    "one_pass": False,
}


def _ntxent(temperature: str) -> Options:
    return {"loss": f"ntxent({temperature})"}


def _cosine(low: float, high: float) -> Options:
    return _ntxent(f"cosine({low:g}, {high:g})")


def _shifted(low: float, high: float, shift: float) -> Options:
    return _ntxent(f"shifted_cosine({low:g}, {high:g}, shift={shift:g})")


def _presets(common: Options, recipes: Recipes) -> dict[str, Preset]:
    return {
        name: Preset(f"Table {rows}", {**common, **options})
        for name, (rows, options) in recipes.items()
    }


_SCHEDULE: Options = {"loss": "ntxent(scheduled(0.1, 1, half_period=200, unit='epoch'))"}
# lightly's defaults: tau_0 0.1, alpha 0.5, a_0 0
_MACL: Options = {"loss": "macl(0.1, alpha=0.5, a_0=0, both_views=True)"}
_DCL: Options = {"loss": "dcl(0.1, per_view=True)"}  # lightly's before June 2025, and the authors'
_DCLW: Options = {"loss": "dclw(0.1, sigma=0.5, per_view=True)"}
_BARLOW_TWINS: Options = {"loss": "barlow_twins(off_diagonal=0.0051)", "projector": "expander"}
_VICREG: Options = {
    "loss": "vicreg(invariance=25, variance=25, covariance=1)",
    "projector": "expander",
}
_BYOL: Options = {"loss": "byol()", "projector": "byol", "key_momentum": 0.99}
_DINO: Options = {"loss": "dino(prototypes=4096)", "out_dim": 256, "key_momentum": 0.996}


def _cifar(data: str) -> dict[str, Preset]:
    """Return the presets of CIFAR's tables with 200 epochs, and of the paper's figures on CIFAR."""
    ours = _cosine(0.07, 0.2)
    wide: Options = {"train_batch_size": 256, "eval_steps": 1950}
    main = "cifar10n100_bal_bs128_sgd0p1_200eps"
    geometry = "unifalginmentmetrics"
    presets = _presets(
        {**_CIFAR, "dataset": data},
        {
            data: (f"{main}: DySTreSS; {geometry}: DySTreSS", ours),
            # the temperatures of the other methods are ours
            f"{data}-simclr": (f"{main}: SimCLR; {geometry}: SimCLR", _ntxent("0.2")),
            f"{data}-moco": (
                f"{main}: MoCo v2; {geometry}: MoCo v2",
                {"loss": "queue(0.1, queue_size=4096)", "key_momentum": 0.99},
            ),
            f"{data}-dcl": (f"{main}: SimCLR+DCL; {geometry}: DCL", _DCL),
            f"{data}-macl": (f"{main}: MACL (repro.)", _MACL),
            f"{data}-dclw": (f"{geometry}: DCLW", _DCLW),
            f"{data}-256": ("otherframecifar: DySTreSS", {**ours, **wide}),
            # projector and optimiser of both are ours; no small crops, as lightly's on CIFAR
            f"{data}-256-dino": ("otherframecifar: DINO", {**_DINO, **wide}),
            f"{data}-256-w-mse": (
                "otherframecifar: W-MSE",
                {"loss": "w_mse()", "out_dim": 64, **wide},
            ),
            f"{data}-cosine": ("abltempfunc: cosine; monotony: cosine", ours),
            f"{data}-linear": ("abltempfunc: linear", _ntxent("linear(0.07, 0.2)")),
            # the sharpness is ours
            f"{data}-exponential": (
                "abltempfunc: exponential",
                _ntxent("exponential(0.07, 0.2, sharpness=3.5)"),
            ),
            f"{data}-monotonic": (
                "monotony: monotonic cosine",
                _ntxent("monotonic_cosine(0.07, 0.2)"),
            ),
        },
    )
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
        ablations[f"lr-{rate}"] = {**ours, "learning_rate": rate}
    for name, options in ablations.items():
        settings = {**_CIFAR, "dataset": data, **options}
        presets[f"{data}-{name}"] = Preset("an ablation in a figure of the paper", settings)
    return presets


def _long_tailed_cifar(data: str, table: str) -> dict[str, Preset]:
    ours = _cosine(0.07, 0.2)
    theirs: Options = {  # the configuration of Kukleva et al.'s code
        "num_train_epochs": 2000,
        "warmup_ratio": 0.005,
        "learning_rate": 0.5,
        "train_batch_size": 512,
        "weight_decay": 1e-4,
        "min_scale": 0.1,
        "one_pass": True,
    }
    return _presets(
        {**_CIFAR, "dataset": data, "num_train_epochs": 500, "eval_steps": 0},
        {
            data: (f"{table}: DySTreSS", ours),
            f"{data}-simclr": (f"{table}: SimCLR", _ntxent("0.2")),  # the temperature is ours
            f"{data}-star": (f"{table}: DySTreSS*", _cosine(0.1, 0.2)),
            f"{data}-2000": ("compkuklevacifar: DySTreSS", {**theirs, **ours}),
            f"{data}-2000-schedule": ("compkuklevacifar: Kukleva et al.", {**theirs, **_SCHEDULE}),
        },
    )


_SHARED = {  # methods of the tables of ImageNet100 and ImageNet-1K, as lightly's benchmark has them
    "SimCLR": _ntxent("0.1"),
    "DCL": _DCL,
    "BYOL": {**_BYOL, "out_dim": 256, "one_pass": False},
    "Barlow Twins": {**_BARLOW_TWINS, "out_dim": 8192},
    "VICReg": {**_VICREG, "out_dim": 8192},
    "MACL": _MACL,
}


def _imagenet100() -> dict[str, Preset]:
    """Return the presets of ImageNet100 with 200 epochs."""
    ours = _cosine(0.1, 0.2)
    main = "in100_bal_bs256_lars_200eps"
    recipes: Recipes = {"imagenet100": (f"{main}: DySTreSS", ours)}
    for method, options in _SHARED.items():
        recipes[_named("imagenet100", method)] = (f"{main}: {method}", options)
    for low, high in ((0.07, 0.1), (0.07, 0.5), (0.07, 0.2), (0.1, 0.2)):
        name = f"imagenet100-range-{low}-{high}"
        recipes[name] = (f"temprange_abl: {low}/{high}", _cosine(low, high))
    for shift, scale in ((0.0, 0.5), (0.2, 0.6), (0.4, 0.7), (-0.2, 0.6), (-0.4, 0.7)):
        rows = f"tempprof_abl: {shift}/{scale}"
        if shift == -0.4:
            rows += f"; {main}: DySTreSS*"
        recipes[f"imagenet100-shift{shift:+}"] = (rows, _shifted(0.1, 0.2, shift))
    presets = _presets(_IMAGENET100, recipes)
    text_only = {"loss": "dcl(cosine(0.1, 0.2), per_view=True, detach_temperature=False)"}
    presets["imagenet100-dcl-cosine"] = Preset(
        "the text's DySTreSS on SimCLR+DCL, which no table has", {**_IMAGENET100, **text_only}
    )
    # epochs and batch are the text's, the jitter Kukleva et al.'s, LARS that of ImageNet100
    tail: Options = {
        "dataset": "imagenet100_lt",
        "num_train_epochs": 2000,
        "warmup_ratio": 0.005,
        "eval_steps": 0,
        "jitter": 1.0,
    }
    return presets | _presets(
        {**_IMAGENET100, **tail},
        {
            "imagenet100-lt": ("compkuklevain100lt: DySTreSS", ours),
            "imagenet100-lt-schedule": ("compkuklevain100lt: Kukleva et al. (repro.)", _SCHEDULE),
        },
    )


def _named(data: str, method: str) -> str:
    return f"{data}-{method.lower().replace(' ', '-')}"


def _imagenet1k() -> dict[str, Preset]:
    """Return the presets of ImageNet-1K.

    The paper prints lightly's figures of the other methods; rate and decay at batch 256 are
    lightly's where they are not SimCLR's.
    """
    rates: dict[str, Options] = {
        "BYOL": {"learning_rate": 0.45, "lr_scaling": "linear"},
        "Barlow Twins": {"learning_rate": 0.2, "lr_scaling": "linear", "weight_decay": 1.5e-6},
        "VICReg": {"learning_rate": 0.5, "lr_scaling": "linear"},
    }
    main = "in1k_bal_bs256_lars_100eps"
    tables = {  # further ones
        "SimCLR": ("unifalginmentmetrics", "transferlearning"),
        "DCL": ("unifalginmentmetrics", "transferlearning"),
        "DCLW": ("unifalginmentmetrics",),
    }
    ours = "unifalginmentmetrics: DySTreSS; transferlearning: DySTreSS"
    recipes: Recipes = {"imagenet1k": (f"{main}: DySTreSS; {ours}", _cosine(0.1, 0.2))}
    for method, options in {**_SHARED, "DCLW": _DCLW}.items():
        rows = [f"{table}: {method}" for table in (main, *tables.get(method, ()))]
        recipe = {**options, **rates.get(method, {})}
        recipes[_named("imagenet1k", method)] = ("; ".join(rows), recipe)
    return _presets(_IMAGENET1K, recipes)


def _without_negatives() -> dict[str, Preset]:
    """Return the presets of ``otherframein100``, at the table's widths."""
    wide: Options = {"projector": "expander", "out_dim": 2048}
    small_crops: Options = {"min_scale": 0.14, "small_crops": 6, "small_crop_size": 96}  # lightly's
    # a batch of 128 cannot be whitened in the table's 256 dimensions
    narrow: Options = {"projector": "simclr", "out_dim": 64}
    methods: dict[str, Options] = {
        "DySTreSS": {**_cosine(0.1, 0.2), **wide},
        "Barlow Twins": {**_BARLOW_TWINS, **wide},
        "VICReg": {**_VICREG, **wide},
        "Zero-ICL": {"loss": "zero_icl()", **wide, "out_dim": 256},
        "Zero-FCL": {"loss": "zero_fcl()", **wide},
        "Zero-CL": {"loss": "zero_cl()", **wide},
        "W-MSE": {"loss": "w_mse()", **narrow},
        "ARB": {"loss": "arb()", **wide, "trust_coefficient": 0.001, "weight_decay": 1e-4},
        "DINO": {**_DINO, "projector": "simclr", **small_crops},
        "BYOL": {**_BYOL, "out_dim": 4096},  # the table's, as hidden and output width
    }
    recipes = {
        _named("imagenet100-400", method): (f"otherframein100: {method}", options)
        for method, options in methods.items()
    }
    recipes["imagenet100-400"] = recipes.pop("imagenet100-400-dystress")
    return _presets(_LONG, recipes)


PRESETS: dict[str, Preset] = {
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
