"""The presets against the settings that the paper's text and tables give."""

import pytest

from vision.pretraining.presets import PRESETS
from vision.pretraining.settings import PretrainSettings

# the profiles of some shifts have a falling logit
pytestmark = pytest.mark.filterwarnings("ignore")

RESNET50 = {"architecture": "resnet50", "stem": "imagenet", "optimizer": "lars"}
CIFAR = {"architecture": "resnet18", "stem": "cifar", "optimizer": "sgd"}
SETUPS = {  # by table: batch, epochs and further options
    "cifar10n100_bal_bs128_sgd0p1_200eps": (128, 200, {**CIFAR, "learning_rate": 0.06}),
    "otherframecifar": (256, 200, CIFAR),
    "cifar10lt": (128, 500, CIFAR),
    "cifar100lt": (128, 500, CIFAR),
    "compkuklevacifar": (512, 2000, CIFAR),
    "compkuklevain100lt": (256, 2000, RESNET50),
    "in100_bal_bs256_lars_200eps": (256, 200, RESNET50),
    "in1k_bal_bs256_lars_100eps": (256, 100, RESNET50),
    "otherframein100": (128, 400, RESNET50),
    "temprange_abl": (256, 200, RESNET50),
    "tempprof_abl": (256, 200, RESNET50),
}
WIDTHS = {  # of otherframein100, without W-MSE's 256, which a batch of 128 cannot whiten
    "Barlow Twins": 2048,
    "VICReg": 2048,
    "Zero-ICL": 256,
    "Zero-FCL": 2048,
    "Zero-CL": 2048,
    "ARB": 2048,
    "DINO": 256,
    "BYOL": 4096,
    "DySTreSS": 2048,
}
RANGES = {  # tau_min and tau_max by table and row
    "cifar10n100_bal_bs128_sgd0p1_200eps: DySTreSS": (0.07, 0.2),
    "cifar10lt: DySTreSS": (0.07, 0.2),
    "cifar10lt: DySTreSS*": (0.1, 0.2),
    "cifar100lt: DySTreSS": (0.07, 0.2),
    "cifar100lt: DySTreSS*": (0.1, 0.2),
    "in100_bal_bs256_lars_200eps: DySTreSS": (0.1, 0.2),
    "in100_bal_bs256_lars_200eps: DySTreSS*": (0.1, 0.2),
    "in1k_bal_bs256_lars_100eps: DySTreSS": (0.1, 0.2),
}
# rows that are called tau_min/tau_max, and shift/half width
RANGE_ROWS = ("0.07/0.1", "0.07/0.5", "0.07/0.2", "0.1/0.2")
SHIFT_ROWS = ("0.0/0.5", "0.2/0.6", "0.4/0.7", "-0.2/0.6", "-0.4/0.7")


def presets_by_row():
    """The names of presets by table and row."""
    found = {}
    for name, preset in PRESETS.items():
        if preset.description.startswith("Table "):
            for row in preset.description.removeprefix("Table ").split("; "):
                found.setdefault(row, []).append(name)
    return found


BY_ROW = presets_by_row()


def test_all_presets_are_valid():
    for name, preset in PRESETS.items():
        settings = PretrainSettings.of({"preset": name})
        assert settings.preset == name
        assert str(settings.loss) == preset.settings["loss"]


def test_presets_have_their_tables_setup():
    for row, names in BY_ROW.items():
        table, _, method = row.partition(": ")
        if table in SETUPS:
            batch, epochs, expected = SETUPS[table]
            expected = {**expected, "train_batch_size": batch, "num_train_epochs": epochs}
            if table == "otherframein100" and method in WIDTHS:
                expected["out_dim"] = WIDTHS[method]
            for name in names:
                assert expected.items() <= PRESETS[name].settings.items(), name
    assert {row.partition(": ")[0] for row in BY_ROW} > SETUPS.keys()


def profiles(row):
    """The temperatures of a row's presets."""
    return [PretrainSettings.of({"preset": name}).loss.temperature for name in BY_ROW[row]]


def test_presets_have_their_rows_range():
    expected = RANGES | {f"temprange_abl: {row}": numbers(row) for row in RANGE_ROWS}
    for row, ends in expected.items():
        for profile in profiles(row):
            assert profile.tau_min == ends[0]
            assert profile.tau_max == ends[1]


def test_presets_have_their_rows_shift():
    expected = {f"tempprof_abl: {row}": numbers(row) for row in SHIFT_ROWS}
    expected["in100_bal_bs256_lars_200eps: DySTreSS*"] = (-0.4, 0.7)
    for row, (shift, half_width) in expected.items():
        for profile in profiles(row):
            assert profile.shift == shift
            assert profile.half_width == half_width


def numbers(row):
    return tuple(map(float, row.split("/")))
