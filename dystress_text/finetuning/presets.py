"""The presets of text runs: the paper's rows, controls, SimCSE's models, and small runs."""

from __future__ import annotations

from typing import Any

from dystress_text.cli.presets import Preset
from dystress_text.io.paths import EMBEDDED_MODEL
from dystress_text.training.settings import AUTO_FP16

_DEFAULT_LOSS = "infonce(shifted_cosine(0.05, 0.07, shift=-0.4))"  # best STS row of the paper

_SMALL: dict[str, Any] = {
    "model_name_or_path": EMBEDDED_MODEL,
    "pooler_type": "avg",
    "mlp_head": True,
    "learning_rate": 1e-4,
    "drop_duplicates": True,
    "loss": _DEFAULT_LOSS,
    "num_train_epochs": 10,
}

# The settings of SimCSE's scripts. Four differences remain: bf16 on a CPU (STS-B dev at a small
# scale: 61.39, fp32 61.41); torch's AdamW (transformers': 61.39 too); no smaller last batch of an
# epoch; an evaluation after the last step. docs/from-simcse.md lists all.
_PAPER: dict[str, Any] = {
    "model_name_or_path": "bert-base-uncased",
    "pooler_type": "cls",
    "max_seq_length": 32,
    "eval_set": "stsb_dev",
    "loss": _DEFAULT_LOSS,
    "train_batch_size": 64,
    "learning_rate": 3e-5,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.0,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "num_train_epochs": 1,
    "eval_steps": 125,
    "mixed_precision": AUTO_FP16,
}


def _with_loss(description: str, loss: str) -> Preset:
    """Return a preset with the paper's settings and a loss that the paper does not have."""
    return Preset(f"{description}; not a row of the paper", {**_PAPER, "loss": loss})


# name and loss of the rows of the paper's table stsresall: BERT-base, one epoch of Wiki1M; ``+``,
# ``*`` and ``**`` are shifts of -0.2, -0.4 and -0.6
_ROWS = {
    "sts-constant-0.05": ("SimCSE (repro.)", "infonce(0.05)"),
    "sts-macl": ("MACL (repro.)", "macl(alignment_adaptive(0.05, alpha=2, a_0=0.8))"),
    "sts-cosine-0.03-0.05": ("DySTreSS 0.03/0.05", "infonce(cosine(0.03, 0.05))"),
    "sts-shifted-0.2-0.03-0.05": (
        "DySTreSS+ 0.03/0.05",
        "infonce(shifted_cosine(0.03, 0.05, shift=-0.2))",
    ),
    "sts-shifted-0.4-0.03-0.05": (
        "DySTreSS* 0.03/0.05",
        "infonce(shifted_cosine(0.03, 0.05, shift=-0.4))",
    ),
    "sts-shifted-0.6-0.03-0.05": (
        "DySTreSS** 0.03/0.05",
        "infonce(shifted_cosine(0.03, 0.05, shift=-0.6))",
    ),
    "sts-shifted-0.4-0.02-0.05": (
        "DySTreSS* 0.02/0.05",
        "infonce(shifted_cosine(0.02, 0.05, shift=-0.4))",
    ),
    "sts-shifted-0.4-0.05-0.07": ("DySTreSS* 0.05/0.07", _DEFAULT_LOSS),
    "sts-shifted-0.4-0.04-0.05": (
        "DySTreSS* 0.04/0.05",
        "infonce(shifted_cosine(0.04, 0.05, shift=-0.4))",
    ),
}


# controls of shifted profiles, whose temperature is tau_max for all similarities above -shift
CONTROLS = {
    f"sts-constant-{tau}": _with_loss("a constant temperature as a control", f"infonce({tau})")
    for tau in (0.03, 0.04, 0.06, 0.07)
}

# reweightings of other papers at their published settings; those for text where there are any
RULE_PRESETS = {
    "rule-debiased": _with_loss(
        "Chuang et al. 2020, setting for images", "infonce(debiased(0.5, tau_plus=0.1))"
    ),
    "rule-hcl": _with_loss(
        "Robinson et al. 2021, setting for images", "infonce(hcl(0.5, beta=1, tau_plus=0.1))"
    ),
    "rule-focal": _with_loss("Hou and Li 2023, Focal-InfoNCE", "infonce(focal(0.05, margin=0.3))"),
    "rule-adnce": _with_loss(
        "Wu et al. 2023, ADNCE's form for sentences",
        "infonce(adnce(0.07, mu=0.4, sigma=1, weigh_positive=True))",
    ),
    "rule-hardness": _with_loss(
        "hardness weights of sentence-transformers with LLaVE's strength",
        "infonce(hardness(0.05, hardness_strength=9))",
    ),
    "rule-rince": _with_loss(
        "Chuang et al. 2022, q and lam for images", "rince(0.05, q=0.1, lam=0.01)"
    ),
    "rule-siglip": _with_loss("Zhai et al. 2023", "siglip(logit_scale=10, logit_bias=-10)"),
    "rule-temo": _with_loss(
        "TeMo, setting for images with texts",
        "infonce(temo(0.01, alpha=0.04), detach_temperature=False)",
    ),
}

# SimCSE's released models: encoder, batch size, peak learning rate, published average over seven
# STS sets (Gao et al., EMNLP 2021, and the model list of its repository)
SIMCSE_MODELS: dict[str, tuple[str, int, float, float]] = {
    "unsupervised-bert-base": ("bert-base-uncased", 64, 3e-5, 76.25),
    "unsupervised-bert-large": ("bert-large-uncased", 64, 1e-5, 78.41),
    "unsupervised-roberta-base": ("roberta-base", 512, 1e-5, 76.57),
    "unsupervised-roberta-large": ("roberta-large", 512, 3e-5, 78.90),
    "supervised-bert-base": ("bert-base-uncased", 512, 5e-5, 81.57),
    "supervised-bert-large": ("bert-large-uncased", 512, 1e-5, 82.21),
    "supervised-roberta-base": ("roberta-base", 512, 5e-5, 82.52),
    "supervised-roberta-large": ("roberta-large", 512, 1e-5, 83.76),
}


def _simcse(name: str) -> Preset:
    """Return a preset with the recipe of a model that SimCSE released."""
    encoder, batch, rate, average = SIMCSE_MODELS[name]
    settings = {
        **_PAPER,
        "loss": "infonce(0.05)",
        "model_name_or_path": encoder,
        "train_batch_size": batch,
        "learning_rate": rate,
    }
    data = "Wiki1M"
    if name.startswith("supervised"):
        # SimCSE's script averages over four processes, each with the loss of the global batch, so
        # that it clips a quarter of the gradient at 1
        settings |= {"supervised": True, "num_train_epochs": 3, "max_grad_norm": 4.0}
        data = "three epochs of NLI, --train_file nli_for_simcse.csv, clipped as by four processes"
    return Preset(f"SimCSE's {name} on {data}; published STS average {average:.2f}", settings)


# groups of presets for sweeps
TABLES: dict[str, tuple[str, ...]] = {
    "sts": tuple(_ROWS),
    "controls": tuple(CONTROLS),
    "rules": tuple(RULE_PRESETS),
}

# in the order in which they are listed: first what a newcomer needs
PRESETS: dict[str, Preset] = {
    "own-text": Preset(
        "word vectors for your own text in seconds, no network and no GPU, docs/recipe.md; "
        "not a row of the paper",
        {
            "model_name_or_path": "static",
            "dim": 1024,
            "pooler_type": "avg",
            "views": "crop",
            "loss": "dcl(0.1)",
            "eval_set": "none",
            "drop_duplicates": True,
            "max_seq_length": 2048,
            "train_batch_size": 256,
            "learning_rate": 3e-3,
            "num_train_epochs": 40,
            "max_steps": 1000,
            "max_grad_norm": 0.0,
            "mixed_precision": "no",
            "eval_steps": 0,
        },
    ),
    "quickstart": Preset(
        "without network and GPU: an embedded encoder on Python's documentation; "
        "not a row of the paper",
        {
            **_SMALL,
            "train_file": "python-documentation",
            "eval_set": "mini_sts",
            "max_steps": 150,
            "eval_steps": 50,
        },
    ),
    "small": Preset(
        "a small encoder with only masked-language-model training, for two CPU cores; "
        "not a row of the paper",
        {**_SMALL, "max_steps": 1000},
    ),
    "paper": Preset(
        "BERT-base on Wiki1M as in the paper, the default: DySTreSS* 0.05/0.07",
        _PAPER,
    ),
    **{
        name: Preset(f"Table stsresall, row {row}", {**_PAPER, "loss": loss})
        for name, (row, loss) in _ROWS.items()
    },
    **CONTROLS,
    **RULE_PRESETS,
    **{name: _simcse(name) for name in SIMCSE_MODELS},
    "own-text-encoder": Preset(
        "a small transformer for your own text, two crops of each sample; not a row of the paper",
        {
            **_SMALL,
            "loss": "dcl(0.03)",
            "pooler_type": "avg_first_last",
            "views": "crop",
            "eval_set": "none",
            "max_steps": 400,
            "learning_rate": 4e-4,
        },
    ),
}
