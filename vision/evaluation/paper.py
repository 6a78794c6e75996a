"""The figures of the paper's tables of images, for presets, evaluation and pages; simcse/paper.py
has those of text.

All but the geometry of features are accuracies x 100. The paper has one run for each row.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# of a figure in the results of an evaluation, such as ("knn", "200-NN", "top1")
Place = tuple[str, ...]
Values = tuple[float | None, ...]

LINEAR1 = ("linear", "top1")
LINEAR5 = ("linear", "top5")
NN1 = ("knn", "1-NN", "top1")
NN10 = ("knn", "10-NN", "top1")
NN20 = ("knn", "20-NN", "top1")
NN20_TOP5 = ("knn", "20-NN", "top5")
NN200 = ("knn", "200-NN", "top1")
UNIFORMITY = ("geometry", "uniformity")
ALIGNMENT = ("geometry", "alignment")
INTERCLASS = ("geometry", "interclass_uniformity")
FINE_TUNED = ("transfer", "accuracy", "top1")
UNNAMED = ("unnamed", "top1")  # the paper does not say how it measured


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    # of each figure of a row, the data set and its place in the results
    columns: tuple[tuple[str, Place], ...]
    rows: Mapping[str, Values]  # figures by the name of the row; None where the paper has none


def _on(datasets: tuple[str, ...], *places: Place) -> tuple[tuple[str, Place], ...]:
    return tuple((dataset, place) for dataset in datasets for place in places)


_CIFAR = ("cifar10", "cifar100")
_IN100 = ("imagenet100",)

TABLES: dict[str, Table] = {  # by the label in the paper's source, or its end where that is long
    "cifar10n100_bal_bs128_sgd0p1_200eps": Table(
        _on(_CIFAR, NN200),
        {
            "SimCLR": (83.65, 52.32),
            "MoCo v2": (83.9, 54.01),
            "SimCLR+DCL": (84.4, 56.02),
            "MACL (repro.)": (84.85, 56.15),
            "DySTreSS": (85.68, 56.57),
        },
    ),
    "abltempfunc": Table(
        _on(_CIFAR, NN200),
        {"cosine": (85.85, 56.57), "linear": (85.74, 56.78), "exponential": (85.81, 56.47)},
    ),
    "monotony": Table(
        _on(_CIFAR, NN200), {"cosine": (85.85, 56.57), "monotonic cosine": (85.84, 56.21)}
    ),
    "otherframecifar": Table(
        _on(_CIFAR, NN200),
        {"DINO": (84.02, 46.79), "W-MSE": (85.52, 52.72), "DySTreSS": (85.68, 56.57)},
    ),
    "cifar10lt": Table(
        _on(("cifar10_lt",), NN1, NN10),
        {"SimCLR": (57.12, 55.29), "DySTreSS": (58.36, 56.4), "DySTreSS*": (58.34, 56.54)},
    ),
    "cifar100lt": Table(
        _on(("cifar100_lt",), NN1, NN10),
        {"SimCLR": (28.27, 26.18), "DySTreSS": (29.43, 27.1), "DySTreSS*": (28.82, 27.32)},
    ),
    "compkuklevacifar": Table(
        _on(("cifar10_lt", "cifar100_lt"), UNNAMED),
        {"Kukleva et al.": (62.91, 30.2), "DySTreSS": (64.98, 31.71)},
    ),
    "compkuklevain100lt": Table(
        _on(("imagenet100_lt",), UNNAMED), {"Kukleva et al. (repro.)": (45.3,), "DySTreSS": (46.1,)}
    ),
    "in100_bal_bs256_lars_200eps": Table(
        _on(_IN100, LINEAR1, LINEAR5),
        {
            "SimCLR": (75.54, 93.06),
            "DCL": (77.38, 94.01),
            "BYOL": (75.02, 93.42),
            "Barlow Twins": (75.88, 93.96),
            "VICReg": (76.36, 94.14),
            "MACL": (78.28, 94.25),
            "DySTreSS": (78.78, 94.7),
            "DySTreSS*": (78.82, 94.76),
        },
    ),
    "in1k_bal_bs256_lars_100eps": Table(
        _on(("imagenet1k",), LINEAR1, LINEAR5),
        {
            "SimCLR": (63.2, 85.2),
            "DCL": (65.1, 86.2),
            "DCLW": (64.2, 86.0),
            "BYOL": (62.4, 82.7),
            "Barlow Twins": (62.9, 84.3),
            "VICReg": (63.0, 85.4),
            "MACL": (64.3, None),
            "DySTreSS": (65.21, 86.55),
        },
    ),
    "otherframein100": Table(
        _on(_IN100, LINEAR1, LINEAR5),
        {
            "Barlow Twins": (78.62, 94.72),
            "VICReg": (79.22, 95.06),
            "Zero-ICL": (78.02, 95.61),
            "Zero-FCL": (79.32, 94.94),
            "Zero-CL": (79.26, 94.98),
            "W-MSE": (69.06, 91.22),
            "ARB": (79.48, 95.51),
            "DINO": (74.84, 92.92),
            "BYOL": (80.09, 94.99),
            "DySTreSS": (81.24, 95.64),
        },
    ),
    "temprange_abl": Table(
        # the last is the text's, on the same rows
        _on(_IN100, NN20, NN20_TOP5, LINEAR1, LINEAR5, INTERCLASS),
        {
            "0.07/0.1": (67.18, 87.82, 77.28, 94.16, -0.6584),
            "0.07/0.5": (67.88, 88.22, 76.34, 93.72, -0.7202),
            "0.07/0.2": (71.46, 89.42, 78.46, 94.4, -0.7422),
            "0.1/0.2": (72.0, 89.76, 78.76, 94.7, -0.771),
        },
    ),
    "tempprof_abl": Table(
        _on(_IN100, NN20, NN20_TOP5, LINEAR1, LINEAR5),
        {
            "0.0/0.5": (71.66, 90.16, 78.46, 94.86),
            "0.2/0.6": (71.58, 89.14, 78.56, 94.38),
            "0.4/0.7": (71.58, 89.58, 78.46, 94.54),
            "-0.2/0.6": (72.38, 89.99, 78.78, 94.59),
            "-0.4/0.7": (71.58, 90.16, 78.82, 94.76),
        },
    ),
    "transferlearning": Table(  # printed with a row for each data set
        _on(
            ("mura", "chaoyang", "isic2016", "mhist", "cifar10", "cifar100", "flowers102"),
            FINE_TUNED,
        ),
        {
            "SimCLR": (81.81, 83.22, 85.49, 83.62, 96.93, 82.99, 93.82),
            "DCL": (81.7, 83.12, 86.02, 85.26, 97.09, 83.03, 94.11),
            "DySTreSS": (82.27, 83.26, 85.75, 83.98, 97.14, 83.96, 96.76),
            "supervised": (82.1, 83.5, 85.5, 86.9, 97.5, 86.4, 97.6),
        },
    ),
    "unifalginmentmetrics": Table(
        (
            *_on(_CIFAR, UNIFORMITY, ALIGNMENT, INTERCLASS, NN200),
            *_on(("imagenet1k",), UNIFORMITY, ALIGNMENT, INTERCLASS, LINEAR1),
        ),
        {
            "SimCLR": (
                -2.2135,
                1.5784,
                -0.5194,
                83.65,
                -2.2556,
                1.4661,
                -0.5246,
                52.32,
                -2.9084,
                1.5253,
                -0.8739,
                63.2,
            ),
            "MoCo v2": (
                -2.1929,
                1.47393,
                -0.5094,
                83.67,
                -2.2202,
                1.4444,
                -0.5364,
                54.01,
                None,
                None,
                None,
                None,
            ),
            "DCLW": (
                -2.5482,
                1.5632,
                -0.5349,
                84.02,
                -2.6865,
                1.5425,
                -0.6405,
                55.87,
                -3.0137,
                1.5295,
                -0.9544,
                64.2,
            ),
            "DCL": (
                -2.7717,
                1.6181,
                -0.5524,
                84.47,
                -2.8314,
                1.5723,
                -0.6792,
                56.02,
                -3.0786,
                1.5335,
                -1.0053,
                65.1,
            ),
            "DySTreSS": (
                -2.843,
                1.631,
                -0.5797,
                85.83,
                -2.8169,
                1.5408,
                -0.7657,
                56.72,
                -3.0596,
                1.5278,
                -1.0015,
                65.2,
            ),
        },
    ),
}


def row_of(table: str, name: str) -> str:
    """What records call a row; KeyError if the table has none such."""
    TABLES[table].rows[name]
    return f"Table {table}, row {name}"


def figures_of(row: str, dataset: str) -> dict[Place, float]:
    """The figures of a row on a data set, by their place in an evaluation's results; none of an
    unknown row.
    """
    label, _, name = row.removeprefix("Table ").partition(", row ")
    table = TABLES.get(label)
    if table is None or name not in table.rows:
        return {}
    return {
        place: value
        for (data, place), value in zip(table.columns, table.rows[name], strict=True)
        if data == dataset_name(dataset) and value is not None
    }


def dataset_name(dataset: str) -> str:
    """The name of a data set, which may be given as a path that ends in it."""
    return Path(dataset).name.lower()


def results_of(
    rows: Iterable[str], dataset: str, tasks: Container[str] | None = None
) -> dict[str, dict[str, Any]]:
    """The figures of rows that have some, by row, in the shape of an evaluation's results;
    ``tasks`` None for all.

    The linear probe is taken to be the published form.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for place, value in figures_of(row, dataset).items():
            if tasks is None or place[0] in tasks:
                part = found.setdefault(row, {})
                for key in place[:-1]:
                    part = part.setdefault(key, {"probe": "augmented"} if key == "linear" else {})
                part[place[-1]] = value
    return found


def told(row: str, dataset: str) -> str:
    """A row and its figures on a data set, for the line of a preset."""
    figures = []
    for place, value in figures_of(row, dataset).items():
        measure = " ".join(_WORDS.get(key, key) for key in place if key not in _UNSAID)
        digits = "g" if place[0] == "geometry" else ".2f"
        figures.append(f"{measure} {value:{digits}}")
    return f"{row}: {', '.join(figures)}"


_WORDS = {
    "transfer": "fine-tuned",
    "unnamed": "accuracy",
    "top1": "top-1",
    "top5": "top-5",
    "interclass_uniformity": "inter-class uniformity",
}
_UNSAID = ("knn", "geometry", "accuracy")
