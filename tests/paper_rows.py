"""Every row of the paper's tables against the presets and against the figures that stand beside ours in reports.

    python tests/paper_rows.py                          # ../shared/paper_tables.json
    python tests/paper_rows.py paper_tables.json

Prints for each table its rows: how many there are, how many have a preset, how many the paper's hyper-parameters in it,
how many all their figures. Below are the rows that lack something, each with the reason. The exit code is 0 if every
row has a preset or a reason here, every other hyper-parameter is the paper's, and every figure is.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a program

from dystress_text.evaluation.catalogue import TASKS  # noqa: E402  # needs the path
from dystress_text.simcse import arguments as text_arguments  # noqa: E402
from dystress_text.simcse import paper as text_paper  # noqa: E402
from dystress_text.simcse.objective import TEXT  # noqa: E402
from dystress_text.simcse.presets import PRESETS as TEXT_PRESETS  # noqa: E402
from dystress_text.training.build_loss import build_temperature  # noqa: E402
from vision import train  # noqa: E402
from vision.evaluation import paper  # noqa: E402
from vision.evaluation.fine_tuning import NAMED_WEIGHTS, FineTuningRecipe  # noqa: E402
from vision.pretraining.presets import PRESETS as IMAGE_PRESETS  # noqa: E402

TABLES = ROOT.parent / "shared" / "paper_tables.json"
Json = dict[str, Any]

_CIFAR = {"CIFAR10": ("cifar10", paper.NN200), "CIFAR100": ("cifar100", paper.NN200)}
_LONG = {"1-NN": paper.NN1, "10-NN": paper.NN10}
_LINEAR = {"top1": paper.LINEAR1, "top5": paper.LINEAR5}
_GEOMETRY = {"uniformity": paper.UNIFORMITY, "alignment": paper.ALIGNMENT, "interclass_uniformity": paper.INTERCLASS}
_ABLATION = {"20NN top1": paper.NN20, "20NN top5": paper.NN20_TOP5, "linear top1": paper.LINEAR1,
             "linear top5": paper.LINEAR5, "interclass_uniformity": paper.INTERCLASS}  # fmt: skip


def _on(dataset: str, places: Mapping[str, paper.Place]) -> dict[str, tuple[str, paper.Place]]:
    return {column: (dataset, place) for column, place in places.items()}


# tables of images in the file: what it is called here, and the data set and the place of each column
IMAGES: dict[str, tuple[str, dict[str, tuple[str, paper.Place]]]] = {
    "in100": ("in100_bal_bs256_lars_200eps", _on("imagenet100", _LINEAR)),
    "in1k": ("in1k_bal_bs256_lars_100eps", _on("imagenet1k", _LINEAR)),
    "cifar": ("cifar10n100_bal_bs128_sgd0p1_200eps", _CIFAR),
    "kukleva_cifar": (
        "compkuklevacifar",
        {"CIFAR10-LT": ("cifar10_lt", paper.UNNAMED), "CIFAR100-LT": ("cifar100_lt", paper.UNNAMED)},
    ),
    "kukleva_in100lt": ("compkuklevain100lt", {"ImageNet100-LT": ("imagenet100_lt", paper.UNNAMED)}),
    "cifar10lt": ("cifar10lt", _on("cifar10_lt", _LONG)),
    "cifar100lt": ("cifar100lt", _on("cifar100_lt", _LONG)),
    "others_in100": ("otherframein100", _on("imagenet100", _LINEAR)),
    "others_cifar": ("otherframecifar", _CIFAR),
    "functions": ("abltempfunc", _CIFAR),
    "monotony": ("monotony", _CIFAR),
    "transfer": ("transferlearning", {}),  # a row for each data set and a column for each model
    "geometry/CIFAR10": ("unifalginmentmetrics", _on("cifar10", {**_GEOMETRY, "accuracy": paper.NN200})),
    "geometry/CIFAR100": ("unifalginmentmetrics", _on("cifar100", {**_GEOMETRY, "accuracy": paper.NN200})),
    "geometry/ImageNet1K": ("unifalginmentmetrics", _on("imagenet1k", {**_GEOMETRY, "accuracy": paper.LINEAR1})),
    "range": ("temprange_abl", _on("imagenet100", _ABLATION)),
    "profile": ("tempprof_abl", _on("imagenet100", _ABLATION)),
}
CLASSES = {"mura": 2, "chaoyang": 4, "isic2016": 2, "mhist": 2, "cifar10": 10, "cifar100": 100, "flowers102": 102}
# (table of the file, row, hyper-parameter): why a preset has another one than the paper
OTHERWISE = {
    ("others_in100", "W-MSE", "projection_dim"): "256 dimensions cannot be whitened in a batch of 128: 64 here",
}
# (table of the file, row): why there is no preset
NO_PRESET: dict[tuple[str, str], str] = {}
SUPERVISED = "transfer, column supervised: figures of other papers; no preset pre-trains with labels"


@dataclass
class Found:
    """What a row of the paper has here.

    Attributes:
        table: in the file.
        row: its name.
        presets: of the row.
        missing: data sets without a preset.
        otherwise: hyper-parameters of the presets that are not the paper's, with both values.
        wrong: figures that are not the paper's.
    """

    table: str
    row: str
    presets: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    otherwise: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def problems(self) -> Iterator[str]:
        """What has no reason."""
        where = f"{self.table}, row {self.row}"
        if self.missing and (self.table, self.row) not in NO_PRESET:
            yield f"{where}: no preset for {', '.join(self.missing)}"
        for name, said in self.otherwise.items():
            if (self.table, self.row, name) not in OTHERWISE:
                yield f"{where}: {said}"
        yield from (f"{where}: {figure}" for figure in self.wrong)

    def reasons(self) -> Iterator[str]:
        """What is written about what it lacks."""
        where = f"{self.table}, row {self.row}"
        if self.missing and (self.table, self.row) in NO_PRESET:
            yield f"{where}: {NO_PRESET[self.table, self.row]}"
        for name in self.otherwise:
            if (self.table, self.row, name) in OTHERWISE:
                yield f"{where}: {OTHERWISE[self.table, self.row, name]}"


def text_rows(tables: Mapping[str, Json]) -> Iterator[Found]:
    """The rows of both halves of the text table."""
    for half, group in enumerate(("sts", "transfer")):
        table = tables[f"stsresall/{group}"]
        by_name = {row.name: row for row in text_paper.ROWS}
        names = [name.replace("-", "") for name in TASKS[group]] + ["avg"]
        for row in table["rows"]:
            found, ours = Found(f"stsresall/{group}", row["name"]), by_name[row["name"]]
            theirs = dict(zip(table["columns"], row["values"], strict=True))
            own = dict(zip(names, [*ours.figures(group).values(), ours.printed[half]], strict=True))
            found.wrong = _differing(theirs, own)
            found.presets = [name for name, preset in TEXT_PRESETS.items() if ours.title in preset.rows]
            found.missing = [] if found.presets else ["text"]
            for name in found.presets:
                settings = text_arguments.parse([f"--preset={name}"])
                values = build_temperature(settings.loss, TEXT).values()  # the default preset names none of them
                options = {**settings.options(), **values, "temp": values.get("tau")}
                found.otherwise |= _hyper_parameters(options, table["setup"], row["settings"])
            yield found


def image_rows(tables: Mapping[str, Json]) -> Iterator[Found]:
    """The rows of the tables of images."""
    for key, (label, columns) in IMAGES.items():
        if key == "transfer":
            yield from _transfer_rows(tables[key], label)
            continue
        for row in tables[key]["rows"]:
            found, values = Found(key, row["name"]), dict(zip(tables[key]["columns"], row["values"], strict=True))
            width = values.pop("projection_dim", None)
            own = paper.row_of(label, row["name"])
            ours = {column: paper.figures_of(own, dataset).get(place) for column, (dataset, place) in columns.items()}
            found.wrong = _differing(values, {column: ours[column] for column in values})
            for dataset in dict.fromkeys(dataset for dataset, _ in columns.values()):
                presets = _presets_of(own, dataset)
                found.presets += presets
                found.missing += [] if presets else [dataset]
                for name in presets:
                    setup = {**tables[key].get("setup", {}), "projection_dim": width}
                    options = train.parse([f"--preset={name}"]).options()
                    found.otherwise |= _hyper_parameters(options, setup, row.get("settings"))
            yield found


def _transfer_rows(table: Json, label: str) -> Iterator[Found]:
    """Fine-tuning on a data set is a row; its columns are the models of three presets, and supervised ones."""
    recipe, setup = FineTuningRecipe(), table["setup"]
    for row in table["rows"]:
        found, dataset, settings = Found("transfer", row["name"]), row["name"].lower(), row["settings"]
        dataset = "flowers102" if dataset == "flowers" else dataset
        for model, value in zip(table["columns"], row["values"], strict=True):
            own = paper.row_of(label, model)
            found.wrong += _differing({model: value}, {model: paper.figures_of(own, dataset).get(paper.FINE_TUNED)})
            presets = _presets_of(own, "imagenet1k")
            found.presets += presets
            found.missing += [model] if not presets and model != "supervised" else []
        weights = settings.get("class_weights", [settings["positive_weight"]] if "positive_weight" in settings else [])
        named = [float(number) for number in re.findall(r"\d+\.\d+", str(NAMED_WEIGHTS.get(dataset, "")))]
        rates = [recipe.rate(epoch, CLASSES[dataset]) for epoch in range(recipe.epochs)]
        drops = [epoch for epoch in range(1, recipe.epochs) if rates[epoch] < rates[epoch - 1]]
        theirs = (setup["epochs"], setup["batch"], setup["milestones"], settings["lr"], weights)
        ours = (recipe.epochs, recipe.batch_size, drops, rates[0], named)
        found.otherwise = {} if theirs == ours else {"recipe": f"{ours} here, {theirs} in the paper"}
        yield found


def _presets_of(row: str, dataset: str) -> list[str]:
    return [n for n, preset in IMAGE_PRESETS.items() if row in preset.rows and preset.settings["dataset"] == dataset]


def _differing(theirs: Mapping[str, float | None], ours: Mapping[str, float | None]) -> list[str]:
    return [f"{name} {ours[name]} here, {value} in the paper" for name, value in theirs.items() if ours[name] != value]


_ENCODERS = {
    "ResNet-50": {"architecture": "resnet50", "stem": "imagenet"},
    "ResNet-18, CIFAR stem": {"architecture": "resnet18", "stem": "cifar"},
    "bert-base-uncased": {"model_name_or_path": "bert-base-uncased"},
}
_OPTIMIZERS = {"LARS": {"optimizer": "lars"}, "SGD 0.06": {"optimizer": "sgd", "learning_rate": 0.06}}
_OPTIONS = {"tau": "temp", "batch": "train_batch_size", "epochs": "num_train_epochs", "projection_dim": "out_dim"}


def _hyper_parameters(options: Mapping[str, Any], setup: Json, settings: Json | None) -> dict[str, str]:
    """The hyper-parameters in the file that the options do not have, in words."""
    expected: dict[str, dict[str, Any]] = {}
    for name, value in {**setup, **(settings or {})}.items():
        match name:
            case "encoder":
                expected[name] = _ENCODERS[value]
            case "optimizer":
                expected[name] = _OPTIMIZERS[value]
            case "data":
                expected[name] = {"train_file": None}  # Wiki1M
            case _ if value is not None or name in ("shift", "scale"):
                expected[name] = {_OPTIONS.get(name, name): value}
    wrong = {}
    for name, wanted in expected.items():
        own = {option: options[option] for option in wanted}
        if own != wanted:
            wrong[name] = f"{own} in --preset {options['preset']}, {wanted} in the paper"
    return wrong


def compare(tables: Mapping[str, Json]) -> list[Found]:
    """Every row of the file's tables.

    Raises:
        KeyError: a table or a row is not known here.
    """
    unknown = tables.keys() - {"stsresall/sts", "stsresall/transfer", *IMAGES}
    if unknown:
        raise KeyError(f"tables that this program does not know: {', '.join(sorted(unknown))}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several of the paper's profiles have a falling logit
        return [*text_rows(tables), *image_rows(tables)]


def report(rows: list[Found]) -> Iterator[str]:
    """The counts of each table, and what is said about rows that lack something."""
    heading = ("rows", "with preset", "hyper-parameters", "figures")
    yield f"{'table':20}" + "".join(f"{title:>18}" for title in heading)
    for name in [*dict.fromkeys(row.table for row in rows), "all"]:
        own = [row for row in rows if name in (row.table, "all")]
        numbers = (
            len(own),
            sum(not row.missing for row in own),
            sum(not row.missing and not row.otherwise for row in own),
            sum(not row.wrong for row in own),
        )
        yield f"{name:20}" + "".join(f"{number:18}" for number in numbers)
    said = sum(not row.missing or (row.table, row.row) in NO_PRESET for row in rows)
    yield f"{said} of {len(rows)} rows have a preset or a written reason"
    yield from (f"reason: {line}" for row in rows for line in row.reasons())
    yield f"reason: {SUPERVISED}"
    yield from (f"PROBLEM: {line}" for row in rows for line in row.problems())


def main(argv: list[str]) -> int:
    """The program; returns its exit code."""
    file = Path(argv[0]) if argv else TABLES
    if not file.is_file():
        print(f"paper_rows.py: error: no file {str(file)!r}", file=sys.stderr)
        return 2
    rows = compare(json.loads(file.read_text(encoding="utf-8")))
    print("\n".join(report(rows)))
    return int(any(problem for row in rows for problem in row.problems()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
