"""The laboratory on static tables: constants, profiles and other papers' rules, each run a line of
static.jsonl.

    # all settings
    OMP_NUM_THREADS=1 python tests/benchmarks/static_laboratory.py --seeds 0 1 --data ../shared/data
    OMP_NUM_THREADS=1 python tests/benchmarks/static_laboratory.py --test --seeds 2 3 4 --data ../shared/data
    python tests/benchmarks/static_laboratory.py # docs/laboratory/static-tables.md's table

docs/study/static_plan.md has the plan. A line of docs/study/static.jsonl is a run: loss, text,
seed, and the figures on the sets of that text. Runs of one seed share the table's start, the
batches and the crops. A run gives what ``dystress train --preset own-text --num_train_epochs 10``
gives, without model, card and page. What the file has is not run again. ``--data`` is a folder with
``wiki_paragraphs.txt.xz``, ``senteval``, ``retrieval/cisi`` and ``retrieval/cacm``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from dystress_text import loss as loss_of
from dystress_text.config.settings import RunSettings
from dystress_text.data.corpus import TokenCroppedCorpus, TokenizedCorpus, load_corpus
from dystress_text.data.crops import Crops
from dystress_text.data.texts import training_text
from dystress_text.evaluation.catalogue import STS_SETS
from dystress_text.evaluation.embedder import TextEncoder
from dystress_text.evaluation.readers import StsPairs
from dystress_text.evaluation.retrieval import Collection, read_collection
from dystress_text.evaluation.statistics import Difference, holm, paired
from dystress_text.evaluation.sts import spearman
from dystress_text.losses.vectors import positive_similarity, unit_vectors
from dystress_text.models.embedder import encode
from dystress_text.models.static import (
    embedded_tokenizer,
    initialize_by_idf,
    new_static,
    pretrained_tokenizer,
    table_of,
    tokenizer_of,
)
from dystress_text.training.batches import BatchOrder
from dystress_text.training.trainer import LEARNED_RATE

STUDY = Path(__file__).resolve().parents[2] / "docs" / "study"
RUNS = STUDY / "static.jsonl"
PASSES, PARAGRAPHS = 10, 1300
CHOICE, SEEDS = range(2), range(20)  # seeds that choose settings, and all
STS = {"STS-B dev": "stsb_dev", "STS12": "sts12", "SICK-R": "sickr_test"}
TEXTS = {
    "CISI": ("CISI",),
    "CACM": ("CACM",),
    "Wikipedia": tuple(STS),
}  # the sets that are measured, by training text
CHOSEN_ON = {
    "CISI": "CACM",
    "CACM": "CISI",
    "STS12": "STS-B dev",
    "SICK-R": "STS-B dev",
}  # for each set of the answer
QUESTIONS = {"search": ("CISI", "CACM"), "similarity": ("STS12", "SICK-R")}

CONSTANTS = (0.01, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
OBJECTIVES = {"InfoNCE": "infonce", "DCL": "dcl"}
RANGES = ("0.05, 0.1", "0.1, 0.2", "0.15, 0.3")
PROFILES = {
    "cosine": "cosine({})", "shifted -0.4": "shifted_cosine({}, shift=-0.4)", "linear": "linear({})",
    "monotonic cosine": "monotonic_cosine({})",
}  # fmt: skip
_OTHERS = {  # rules of other papers: the published setting first, then some nearer to this range
    "ADNCE": ("infonce(adnce({}, mu=0.4, sigma=1, weigh_positive=True))", ("0.07", "0.1", "0.2")),
    "debiased": ("infonce(debiased({}, tau_plus=0.1))", ("0.5", "0.2", "0.1")),
    "HCL": ("infonce(hcl({}, beta=1, tau_plus=0.1))", ("0.5", "0.3", "0.2")),
    "RINCE": ("rince({}, q=0.1, lam=0.01)", ("0.05", "0.1", "0.2")),
    "TeMo": ("infonce(temo({}), detach_temperature=False)", ("0.01, 0.04", "0.03, 0.12", "0.05, 0.2")),
    "SigLIP": ("siglip({})", ("10, -10", "10, -5.5", "5, -5.5")),
    "Focal": ("infonce(focal({}, margin=0.3))", ("0.05", "0.1", "0.15")),
    "hardness weights": ("infonce(hardness({}))", ("0.05, 9", "0.15, 5", "0.3, 10")),
    "MACL": ("macl({})", ("0.05, 2, 0.8", "0.1, 1, 0.8", "0.2, 1, 0.8")),
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A rule with the losses of its settings, and the objective whose constants it is compared
    with.
    """

    name: str
    objective: str
    losses: tuple[str, ...]


def _text(written: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where a profile lets the logit fall
        return str(loss_of(written))


@cache
def constants(objective: str) -> tuple[str, ...]:
    """The losses of an objective under each constant."""
    return tuple(_text(f"{OBJECTIVES[objective]}({tau})") for tau in CONSTANTS)


@cache
def rules() -> list[Rule]:
    """DySTreSS's profiles within both objectives, then the rules of other papers."""
    found = [
        Rule(
            f"{name}, {title}",
            title,
            tuple(_text(f"{call}({profile.format(each)})") for each in RANGES),
        )
        for (title, call), (name, profile) in product(OBJECTIVES.items(), PROFILES.items())
    ]
    others = (
        (name, [_text(form.format(each)) for each in settings])
        for name, (form, settings) in _OTHERS.items()
    )
    return found + [Rule(name, "InfoNCE", tuple(losses)) for name, losses in others]


# ---- the runs

Figures = dict[str, dict[tuple[str, int], float]]  # by set, loss and seed


class Laboratory:
    """A training text with the sets that are measured on it."""

    def __init__(self, text: str, data: Path, place: Path) -> None:
        self.collection: Collection | None = None
        self.pairs: dict[str, StsPairs] = {}
        options: dict[str, object] = {
            "preset": "own-text",
            "train_file": str(data / "wiki_paragraphs.txt.xz"),
        }
        if text == "Wikipedia":
            options["max_train_samples"] = PARAGRAPHS
            self.pairs = {
                name: STS_SETS[each].pairs(data / "senteval") for name, each in STS.items()
            }
        else:
            self.collection = read_collection(data / "retrieval" / text.lower())
            options["train_file"] = str(file := place / f"{text}.txt")
            file.write_text(
                "".join(
                    " ".join(each.split()) + "\n" for each in self.collection.documents.values()
                )
            )
        self.settings = settings = RunSettings.of(options)
        self.model = new_static(embedded_tokenizer(), settings.text.dim, normalize=False)
        tokenizer = pretrained_tokenizer(tokenizer_of(self.model))
        limit = settings.text.max_seq_length
        self.read = load_corpus(
            training_text(settings.text), tokenizer, limit, settings.text.max_train_samples
        )
        self.texts_with = cast(TokenizedCorpus, self.read).texts_with(len(tokenizer))
        self.used = torch.from_numpy(np.unique(self.read.content).astype(np.int64))

    def begin(self, seed: int) -> None:
        """Make the start and the batches of a seed; only tokens of the text move, so that the
        others are left out.
        """
        text, training = self.settings.text, self.settings.training
        initialize_by_idf(self.model, self.texts_with, len(self.read.offsets) - 1, seed)
        self.started = table_of(self.model).detach()[self.used]  # (used, dim), a copy
        crops = Crops(seed, text.crop_min, text.crop_max, text.max_seq_length)
        corpus = TokenCroppedCorpus(**vars(self.read), crops=crops).distinct()
        order = BatchOrder(len(corpus), training.train_batch_size, seed)
        samples = [rows for epoch in range(PASSES) for rows in order.epoch(epoch)]
        batches = [corpus.batch(rows, step) for step, rows in enumerate(samples)]
        self.batches = [
            (torch.searchsorted(self.used, each["token_ids"]), each["lengths"]) for each in batches
        ]

    def train(self, written: str) -> SentenceTransformer:
        """A table trained with a loss from the start of the seed."""
        table = torch.nn.Parameter(self.started.clone())
        objective = loss_of(written)
        groups = [{"params": [table], "lr": self.settings.training.learning_rate}]
        if learned := list(objective.parameters()):
            groups.append({"params": learned, "lr": LEARNED_RATE})
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 1 - step / len(self.batches)
        )
        for token_ids, lengths in self.batches:
            starts = lengths.cumsum(0) - lengths
            views = torch.nn.functional.embedding_bag(token_ids, table, starts, mode="mean")
            objective(*views.chunk(2)).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        with torch.no_grad():
            table_of(self.model)[self.used] = table
        return self.model

    @torch.no_grad()
    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        """nDCG@10 x 100 of the collection, or Spearman's correlation x 100 of each set of pairs."""

        if self.collection is not None:
            scores = self.collection.scores(TextEncoder(model))
            return {self.collection.name.upper(): scores["nDCG@10"]}
        found = {}
        for name, pairs in self.pairs.items():
            first, second = (encode(model, side) for side in (pairs.first, pairs.second))
            cosines = positive_similarity(unit_vectors(first), unit_vectors(second))
            found[name] = spearman(cosines.numpy(), pairs.scores)
        return found


def run(losses: Mapping[str, Iterable[str]], seeds: Sequence[int], data: Path) -> None:
    """Run what is not there yet of the losses of each text, seed by seed, and add the lines."""
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as place:
        laboratories = {text: Laboratory(text, data, Path(place)) for text in losses}
        for seed, (text, laboratory) in product(seeds, laboratories.items()):
            found = read()[TEXTS[text][0]]
            missing = [each for each in dict.fromkeys(losses[text]) if (each, seed) not in found]
            if missing:
                laboratory.begin(seed)
            for each in missing:
                figures = laboratory.measure(laboratory.train(each))
                with RUNS.open("a", encoding="utf-8") as sink:
                    sink.write(
                        json.dumps([each, text, seed, *(round(x, 3) for x in figures.values())])
                        + "\n"
                    )
            print(f"seed {seed}, {text}: {len(missing)} runs", flush=True)


def read() -> Figures:
    """The figures of all runs so far."""
    found: Figures = {name: {} for sets in TEXTS.values() for name in sets}
    for line in RUNS.read_text(encoding="utf-8").splitlines() if RUNS.is_file() else []:
        written, text, seed, *figures = json.loads(line)
        for name, figure in zip(TEXTS[text], figures, strict=True):
            found[name][written, seed] = figure
    return found


# ---- what the runs say

Control = Callable[
    [Figures, str, str], str
]  # of the figures, a set and an objective: the constant to compare with


def by_seed(figures: Figures, name: str, written: str, seeds: Iterable[int]) -> dict[int, float]:
    """The figures of a loss on a set."""
    return {
        seed: figures[name][written, seed] for seed in seeds if (written, seed) in figures[name]
    }


def best(figures: Figures, name: str, losses: Iterable[str]) -> str:
    """The loss with the highest mean on a set over the seeds of the choice."""
    return max(
        losses, key=lambda each: np.mean(list(by_seed(figures, name, each, CHOICE).values()))
    )


def of_objective(figures: Figures, name: str, objective: str) -> str:
    """The best constant of a rule's objective, chosen where the rule's setting is chosen."""
    return best(figures, CHOSEN_ON[name], constants(objective))


def of_both(figures: Figures, name: str, objective: str) -> str:
    """The best constant of both objectives, chosen in the same way."""
    return best(
        figures, CHOSEN_ON[name], [each for title in OBJECTIVES for each in constants(title)]
    )


def of_set(figures: Figures, name: str, objective: str) -> str:
    """The constant of the rule's objective that is best on the measured set itself."""
    return best(figures, name, constants(objective))


def to_test(figures: Figures) -> dict[str, list[str]]:
    """The losses that the test compares, by text."""
    wanted: dict[str, list[str]] = {text: [] for text in TEXTS}
    for text, sets in TEXTS.items():
        for name in (each for each in sets if each in CHOSEN_ON):
            wanted[text] += [best(figures, CHOSEN_ON[name], rule.losses) for rule in rules()]
            wanted[text] += [
                control(figures, name, of)
                for of in OBJECTIVES
                for control in (of_objective, of_set)
            ]
    return wanted


def whole_seeds(figures: Figures) -> list[int]:
    """The seeds with all runs of the test."""
    wanted = [
        (TEXTS[text][0], each) for text, losses in to_test(figures).items() for each in losses
    ]
    return [seed for seed in SEEDS if all((each, seed) in figures[name] for name, each in wanted)]


def compare(figures: Figures, control: Control = of_objective) -> dict[str, dict[str, Difference]]:
    """Each rule less its control, by rule and set; Holm's correction is over all rules and sets of
    a question.
    """
    found: dict[str, dict[str, Difference]] = {rule.name: {} for rule in rules()}
    whole = whole_seeds(figures)
    for question, sets in QUESTIONS.items():
        seeds = [seed for seed in whole if question == "search" or seed not in CHOICE]
        places, differences = list(product(rules(), sets)), []
        for rule, name in places:
            losses = (
                best(figures, CHOSEN_ON[name], rule.losses),
                control(figures, name, rule.objective),
            )
            difference = paired(*(by_seed(figures, name, each, seeds) for each in losses))
            assert difference is not None
            differences.append(difference)
        for (rule, name), difference in zip(places, holm(differences), strict=True):
            found[rule.name][name] = difference
    return found


def helps(differences: Mapping[str, Difference], question: str) -> bool:
    """Whether a rule is above its control on both sets of a question, told after Holm."""
    return all(
        differences[name].significant and differences[name].mean > 0 for name in QUESTIONS[question]
    )


def tables() -> dict[str, list[str]]:
    """The page's rows: differences, bold where Holm tells them, and what helps against each
    control.
    """
    figures, rows = read(), []
    against = [compare(figures, control) for control in (of_objective, of_both, of_set)]
    for name, differences in against[0].items():
        cells = [f"**{each}**" if each.significant else str(each) for each in differences.values()]
        helped = [
            ", ".join(of for of in QUESTIONS if helps(each[name], of)) or "no" for each in against
        ]
        rows.append(_row(name, *cells, *helped))
    return {"rules": rows}


def further() -> dict[str, list[str]]:
    """What the page leaves out: the settings that were chosen, and the differences from the other
    two controls.
    """
    figures = read()
    settings = [
        _row(rule.name, *(best(figures, CHOSEN_ON[name], rule.losses) for name in CHOSEN_ON))
        for rule in rules()
    ]
    chosen = [
        _row(control.__name__, title, *(control(figures, name, title) for name in CHOSEN_ON))
        for control, title in product((of_objective, of_both, of_set), OBJECTIVES)
    ]
    found = {
        f"seeds {whole_seeds(figures)}: settings": settings,
        "constants that were chosen": chosen,
    }
    for control in (of_both, of_set):
        compared = compare(figures, control)
        found[control.__name__] = [
            _row(name, *map(str, of.values())) for name, of in compared.items()
        ]
    every = [each for rule in rules() for each in rule.losses] + [
        each for of in OBJECTIVES for each in constants(of)
    ]
    found["means of all settings"] = [
        _row(each, *(mean_of(figures, name, each) for name in figures)) for each in every
    ]
    return found


def mean_of(figures: Figures, name: str, written: str) -> str:
    """The mean of a loss on a set over the seeds of the choice."""
    return f"{np.mean(list(by_seed(figures, name, written, CHOICE).values())):.1f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run what is asked for, or print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=[])
    parser.add_argument("--test", action="store_true", help="what was chosen, not all settings")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    every = [each for rule in rules() for each in rule.losses] + [
        c for of in OBJECTIVES for c in constants(of)
    ]
    run(
        to_test(read()) if options.test else dict.fromkeys(TEXTS, every),
        options.seeds,
        options.data,
    )
    if not options.seeds:
        for title, rows in (tables() | further()).items():
            print(f"{title}\n\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
