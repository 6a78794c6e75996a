"""Supervised training on rows of texts."""

import csv
import json

import numpy as np
import pytest
import torch
from conftest import set_dropout
from model_cases import text_reader, without_normalization
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from dystress_text.finetuning.arguments import parse
from dystress_text.finetuning.corpus import load_corpus
from dystress_text.finetuning.held_out import RECALL
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.finetuning.settings import TextSettings
from dystress_text.finetuning.task import TextTask
from dystress_text.finetuning.texts import training_text
from dystress_text.finetuning.training_data import prepare_data
from dystress_text.losses import InfoNCELoss, ShiftedCosineTemperature
from dystress_text.programs.train import main

ANIMALS = ("cat", "dog", "bird", "fish", "man", "woman")
NAMES = ("sent0", "sent1", "hard_neg", "more")
ROWS = []
for number in range(24):
    one = ANIMALS[number % 6]
    two = ANIMALS[(number + 1) % 4]
    ROWS.append((f"the {one} sat", f"a {one} on the mat", f"the {two} ran", f"{two} saw {one}"))


def table(folder, columns=3, rows=ROWS, names=NAMES):
    file = folder / "rows.csv"
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(names[:columns])
        writer.writerows(row[:columns] for row in rows)
    return str(file)


@pytest.mark.parametrize(("columns", "packing"), [(2, True), (4, False), (4, True)])
def test_batch_of_rows(tiny_bert, tmp_path, columns, packing):
    temperature = ShiftedCosineTemperature(0.05, 0.07, shift=-0.4)
    objective = InfoNCELoss(temperature, hard_negative_weight=0.5)
    settings = TextSettings(
        str(tiny_bert),
        pooler_type="avg",
        train_file=[table(tmp_path, columns)],
        supervised=True,
    )
    initial = load_initial_model(settings)
    set_dropout(initial.embedder, 0.0)
    corpus = load_corpus(training_text(settings), text_reader(32, model=initial.model))
    task = TextTask(initial, corpus, objective, packed=packing)
    assert len(task.corpus) == len(ROWS)
    rows = np.array([5, 0, 7])
    embeddings = task.embed(task.model.train(), task.load(rows, 0))
    bare = without_normalization(initial.model)
    expected = []
    for column in range(columns):
        texts = [ROWS[i][column] for i in rows]
        expected.append(bare.encode(texts, convert_to_tensor=True))
    torch.testing.assert_close(list(embeddings.views), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(task.loss(embeddings), objective(*expected), rtol=1e-5, atol=1e-6)


GRADIENT_CACHE = ["--grad_cache_chunk=3", "--loss=infonce(0.05, hard_negative_weight=0.5)"]
MACL = ["--loss=macl(alignment_adaptive(0.05, 2, 0.8))", "--log_similarity"]


@pytest.mark.parametrize(("columns", "more"), [(3, GRADIENT_CACHE), (2, MACL)])
def test_the_program_trains_on_rows(flags, tmp_path, columns, more):
    options = [*flags, "--supervised", f"--train_file={table(tmp_path)}", "--eval_set=none"]
    options += ["--text_columns", *NAMES[:columns], "--max_train_samples=20", "--held_out=0"]
    assert main([*options, *more]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["corpus"]["sentences"] == 20 * columns
    assert record["steps"] == 6


def static_task(folder, rows):
    """Return the task of own-text on rows, and the distinct rows."""
    options = ["--preset=own-text", "--supervised", "--loss=infonce(0.05)", "--dim=16"]
    settings = parse([*options, f"--train_file={table(folder, rows=rows)}"])
    text = training_text(settings.text)
    initial = load_initial_model(settings.text, settings.given, text)
    data = prepare_data(text, initial, settings)
    distinct = list(dict.fromkeys(row[:3] for row in rows))
    assert len(data.corpus) == len(distinct)
    return TextTask(initial, data.corpus, settings.loss), distinct


def loss_of_all(task):
    rows = np.arange(len(task.corpus))
    return task.loss(task.embed(task.model, task.load(rows, 0)))


def test_static_loss_is_that_of_sentence_transformers(tmp_path):
    task, rows = static_task(tmp_path, ROWS[:6])
    model = task.text_model.model
    features = [model.preprocess(list(texts)) for texts in zip(*rows, strict=True)]
    expected = MultipleNegativesRankingLoss(model, scale=20)(features, None)
    found = loss_of_all(task)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert found > 0.1


def test_rows_with_an_equal_text_are_no_negatives_of_each_other(tmp_path):
    task, rows = static_task(tmp_path, [*ROWS, ("a new anchor", ROWS[0][1], "the dog ran", "")])
    anchors, positives, negatives = zip(*rows, strict=True)
    assert len(set(anchors)) < len(rows)
    encode = task.text_model.model.encode
    candidates = encode([*positives, *negatives], convert_to_tensor=True)
    logits = encode(list(anchors), convert_to_tensor=True) @ candidates.T / 0.05
    for i in range(len(rows)):
        for j in range(len(rows)):
            if i != j and (anchors[i] == anchors[j] or positives[i] == positives[j]):
                logits[i, j] = -torch.inf
    expected = torch.nn.functional.cross_entropy(logits, torch.arange(len(rows)))
    torch.testing.assert_close(loss_of_all(task), expected, rtol=1e-5, atol=1e-6)


def test_own_text_learns_from_pairs(tmp_path):
    # a positive shares no word with its anchor: only training can tell
    letters = np.random.default_rng(0).choice(list("abcdefghijklmnopqrst"), (400, 3))
    rows = [[" ".join(side + letter for letter in row) for side in "xy"] for row in letters]
    file = table(tmp_path, 2, rows, ("anchor", "positive"))
    out = tmp_path / "out"
    options = ["--preset=own-text", "--supervised", f"--train_file={file}", "--dim=32"]
    assert main([*options, "--vocabulary=text", f"--output_dir={out}"]) == 0
    record = json.loads((out / "run.json").read_text())
    assert 35 <= record["held_out"]["texts"] <= 40
    assert record["untrained"]["avg"][RECALL.name] < 10
    assert record["lexical"][RECALL.name] < 10
    assert record["metrics"][RECALL.name]["kind"] == "held-out"
    assert record["trained"][RECALL.name] > 50
