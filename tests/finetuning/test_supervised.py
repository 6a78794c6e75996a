"""Supervised training: rows of sentences that belong together, and every row that is none."""

import csv
import json

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from conftest import set_dropout
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from dystress_text.config.arguments import parse
from dystress_text.config.settings import TextSettings
from dystress_text.data.corpus import load_corpus
from dystress_text.data.texts import training_text
from dystress_text.errors import ParameterError
from dystress_text.finetuning.holdout import OF_PAIRS
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.finetuning.task import SimcseTask
from dystress_text.finetuning.training_data import prepare_data
from dystress_text.io.text_lines import CorpusReport
from dystress_text.losses import InfoNCELoss, ShiftedCosineTemperature
from dystress_text.models.embedder import without_normalization
from dystress_text.programs.train import main

WORDS = zip(
    ("cat", "dog", "bird", "fish", "man", "woman") * 4, ("dog", "bird", "fish") * 8, strict=True
)
ROWS = [
    (f"the {a} sat", f"a {a} was on the mat", f"the {b} ran", f"the {b} saw a {a}")
    for a, b in WORDS
]
NAMES = ("sent0", "sent1", "hard_neg", "more")


def table(folder, columns=3, rows=ROWS, names=NAMES):
    file = folder / "rows.csv"
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([names[:columns], *(row[:columns] for row in rows)])
    return str(file)


def rows_of(file, columns=None):
    return training_text(
        TextSettings(train_file=[str(file)], supervised=True, text_columns=columns)
    )


def sentences_of(text):
    return list(text.sentences(CorpusReport(), None))


@pytest.mark.parametrize(("columns", "packing"), [(2, True), (4, False), (4, True)])
def test_batch_of_rows(tiny_bert, tmp_path, columns, packing):
    objective = InfoNCELoss(
        ShiftedCosineTemperature(0.05, 0.07, shift=-0.4), hard_negative_weight=0.5
    )
    settings = TextSettings(str(tiny_bert), pooler_type="avg", mlp_head=False)
    initial = load_initial_model(settings)
    set_dropout(initial.embedder, 0.0)
    corpus = load_corpus(rows_of(table(tmp_path, columns)), initial.tokenizer, 32)
    task = SimcseTask(initial, corpus, objective, packed=packing)
    assert len(task.corpus) == len(ROWS)
    rows = np.array([5, 0, 7])
    embeddings = task.embed(task.model.train(), task.load(rows, 0))
    bare = without_normalization(initial.model)
    columns_of_rows = [[ROWS[i][k] for i in rows] for k in range(columns)]
    expected = [bare.encode(texts, convert_to_tensor=True) for texts in columns_of_rows]
    for found, one in zip(embeddings.views, expected, strict=True):
        torch.testing.assert_close(found, one, rtol=0, atol=1e-6)
    torch.testing.assert_close(task.loss(embeddings), objective(*expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("columns", "more"),
    [
        (3, ["--grad_cache_chunk=3", "--loss=infonce(0.05, hard_negative_weight=0.5)"]),
        (2, ["--loss=macl()", "--text_columns", *NAMES[:2]]),
        (
            3,
            [
                "--loss=infonce(0.05, bidirectional=True)",
                "--log_similarity",
                "--drop_duplicates",
                "--train_batch_size=4",
            ],
        ),
    ],
)
def test_the_program_trains_on_rows(flags, tmp_path, columns, more):
    given = [flag for flag in flags if not flag.startswith("--train_file")]
    assert (
        main(
            [
                *given,
                "--supervised",
                f"--train_file={table(tmp_path)}",
                "--max_train_samples=20",
                *more,
            ]
        )
        == 0
    )
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    dropped = 20 - len(set(ROWS[:20])) if "--drop_duplicates" in more else 0
    assert (record["corpus"]["sentences"], record["corpus"]["dropped"], record["steps"]) == (
        20 * columns,
        dropped,
        6,
    )


def test_static_loss_is_that_of_sentence_transformers(tmp_path):
    options = ["--preset=own-text", "--supervised", "--loss=infonce(0.05)", "--dim=16"]
    settings = parse([*options, f"--train_file={table(tmp_path)}"])
    text = training_text(settings.text)
    initial = load_initial_model(settings.text, settings.given, text)
    data = prepare_data(text, initial, settings, Accelerator(cpu=True))
    task = SimcseTask(initial, data.corpus, settings.loss)
    rows = np.arange(6)  # the distinct ones
    assert len(task.corpus) == len(rows)
    found = task.loss(task.embed(task.model, task.load(rows, 0)))
    features = [initial.model.preprocess([ROWS[i][k] for i in rows]) for k in range(3)]
    expected = MultipleNegativesRankingLoss(initial.model, scale=20)(features, None)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert found > 0.1


def test_own_text_learns_from_pairs(tmp_path):
    # a positive shares no word with its anchor: only training can tell
    numbers = np.random.default_rng(0).integers(0, 20, (400, 3)).tolist()
    rows = [
        [" ".join(f"{side}{'abcdefghijklmnopqrst'[i]}" for i in of_row) for side in ("x", "y")]
        for of_row in numbers
    ]
    file = table(tmp_path, 2, rows, ("anchor", "positive"))
    out = tmp_path / "out"
    line = ["--preset=own-text", "--supervised", f"--train_file={file}", "--dim=32"]
    line += ["--vocabulary=text", f"--output_dir={out}"]
    assert main(line) == 0
    record = json.loads((out / "run.json").read_text())
    held = record["held_out"]["texts"]
    assert 35 <= held <= 40
    assert record["untrained"]["avg"][OF_PAIRS] < 10
    assert record["lexical"][OF_PAIRS] < 10
    assert record["trained"][OF_PAIRS] > 50


@pytest.mark.parametrize(
    ("columns", "rows", "parameter"),
    [
        (1, ROWS, "supervised"),
        (3, [*ROWS, ("a", "", "b")], "train_file"),
        (3, [("a", "b", "c" * 70_000), *ROWS], "train_file"),
    ],
)
def test_rows_that_do_not_fit(tmp_path, columns, rows, parameter):
    with pytest.raises(ParameterError, match=f"^{parameter}: ") as caught:
        sentences_of(rows_of(table(tmp_path, columns, rows)))
    assert "\n" not in str(caught.value)
