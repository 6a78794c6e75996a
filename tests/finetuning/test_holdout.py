"""Held-out samples: selection, metrics against loops, and what a run reports."""

import json
import re
from collections import Counter
from math import log

import numpy as np
import pytest
import torch
from scipy.stats import sem
from sklearn.metrics.pairwise import cosine_similarity

from dystress_text.finetuning.holdout import (
    METRIC,
    OF_PAIRS,
    bm25_recall,
    compared,
    hold_out,
    measure,
    outcome,
    split_in_half,
)
from dystress_text.programs.train import main
from dystress_text.training.run_record import BASE, HeldOut, RunRecord
from dystress_text.training.trainer import Trainer

RNG = np.random.default_rng(0)
VOCABULARY = [f"word{letter}" for letter in "abcdefghijklmnopqrs"]
TEXTS = [f"{' '.join(RNG.choice(RNG.choice(VOCABULARY, 5), 11))} n{i}" for i in range(700)]


def held_of(lines, most=500):
    """Return the held-out texts and the indices excluded from training."""
    held, excluded = hold_out(lambda: ((line,) for line in lines), most)
    return [line for (line,) in held], excluded.tolist()


def rows_of(texts):
    return [(text,) for text in texts]


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("one, two three four five", "one, two", "three four five"),
        ("猫は古い橋近くで眠る", "猫は古い橋", "近くで眠る"),
        ("ab 猫 cd 犬", "ab 猫", "cd 犬"),
    ],
)
def test_split_at_the_middle_word(text, first, second):
    assert [part.strip() for part in split_in_half(text)] == [first, second]


def test_texts_are_held_out_evenly_with_copies_and_without_short_ones():
    lines = [*TEXTS, *(text.upper() for text in TEXTS[60:160])]
    lines[30:60] = [f"short {i}" for i in range(30)]
    held, excluded = held_of(lines)
    assert len(set(held)) == len(held) == 67  # a tenth of 670
    assert {lines[i].lower() for i in excluded} == set(held)
    assert not {line.lower() for i, line in enumerate(lines) if i not in excluded} & set(held)
    indices = [lines.index(text) for text in held]
    assert set(np.diff([index for index in indices if index > 60])) == {10}
    assert len(held_of(lines, 9)[0]) == 9


@pytest.mark.parametrize(("texts", "count"), [(49, 0), (50, 25), (260, 26)])
def test_number_of_held_out_texts(texts, count):
    assert len(held_of(TEXTS[:texts])[0]) == count


def test_held_out_rows_share_no_text():
    rows = [(f"question {i // 2}", f"answer {i}", "other") for i in range(300)]
    rows += [(f"late {i}", f"answer {i}", "other") for i in range(300)]
    held, excluded = hold_out(lambda: iter(rows), 500)
    anchors = {row[0] for row in held}
    assert len(anchors) == len({row[1] for row in held}) == len(held) == 25
    assert excluded.tolist() == [i for i, row in enumerate(rows) if row[0] in anchors]


def test_half_document_recall_is_that_of_a_loop():
    texts = TEXTS[:80]
    texts[3] = " ".join(["same"] * 8)
    table = {}

    def encode(sentences):
        for sentence in sentences:
            words = [np.random.default_rng([*map(ord, word)]) for word in sentence.split()]
            table[sentence] = np.mean([word.normal(size=6) for word in words], axis=0)
        return torch.tensor(np.array([table[sentence] for sentence in sentences]))

    found, nearest = measure(rows_of(texts), encode)
    expected = []
    for i, text in enumerate(texts):
        words = text.split()
        query = table[" ".join(words[: len(words) // 2])]
        others = [other.split() for other in texts]
        documents = [table[" ".join(other[len(other) // 2 :])] for other in others]
        cosines = cosine_similarity([query], documents)[0]
        expected.append(float(sum(cosine >= cosines[i] - 1e-9 for cosine in cosines) == 1))
    assert found.tolist() == expected
    assert 0 < sum(expected) < len(texts) / 2
    vectors = [table[text] for text in texts]
    assert nearest == (cosine_similarity(vectors) - 3 * np.eye(80)).argmax(1).tolist()
    record = compared(rows_of(texts), (found, nearest), (found[::-1], nearest))
    gains = [100.0 * (x - y) for x, y in zip(expected[::-1], expected, strict=True)]
    assert record["gain"] == pytest.approx(np.mean(gains))
    # Bonett and Price: one more of each kind, with n instead of n - 1
    assert record["error"] == pytest.approx(sem([*gains, 100, -100], ddof=0))
    assert record["neighbours"][0] == [texts[0], *[texts[nearest[0]]] * 2]


def test_recall_of_pairs_is_that_of_a_loop():
    rng = np.random.default_rng(1)
    rows = [(f"anchor {i}", f"positive {i}") for i in range(30)]
    anchors = rng.normal(size=(30, 3))
    positives = anchors + 0.8 * rng.normal(size=(30, 3))
    table = {row[0]: vector for row, vector in zip(rows, anchors, strict=True)}
    table |= {row[1]: vector for row, vector in zip(rows, positives, strict=True)}
    found, _ = measure(rows, lambda texts: torch.tensor(np.array([table[t] for t in texts])))
    best = cosine_similarity(anchors, positives).argmax(1)
    assert found.tolist() == (best == np.arange(30)).astype(float).tolist()
    assert 3 < found.sum() < 27


def test_bm25_recall_is_that_of_a_loop():
    texts = [text.upper() + "!" if i % 2 else text for i, text in enumerate(TEXTS[:60])]
    texts += ["猫は古い橋の近くの暖かい石の上で眠る", "犬は新しい家の前の冷たい水の中で泳ぐ"]
    queries, documents = [], []
    for text in texts:
        words = list(text) if text[0] in "猫犬" else re.findall(r"\w+", text.lower())
        queries.append(words[: len(words) // 2])
        documents.append(words[len(words) // 2 :])
    mean = np.mean([len(document) for document in documents])
    df = Counter(word for document in documents for word in set(document))

    def score(query, document):
        tf = Counter(document)
        norm = 1.5 * (0.25 + 0.75 * len(document) / mean)
        idf = {w: log(1 + (len(documents) - df[w] + 0.5) / (df[w] + 0.5)) for w in query}
        return sum(idf[word] * tf[word] / (tf[word] + norm) for word in query)

    expected = []
    for i, query in enumerate(queries):
        scores = [score(query, document) for document in documents]
        expected.append(float(sum(each >= scores[i] - 1e-6 for each in scores) == 1))
    assert bm25_recall(rows_of(texts)).tolist() == expected
    assert len(texts) / 9 < sum(expected) < len(texts)
    marks = ["! ! ! ! ! ! ! !", "? ? ? ? ? ? ? ?"]
    assert bm25_recall(rows_of(marks)).tolist() == [1, 1]


def test_collapsed_embeddings_find_nothing():
    found, _ = measure(rows_of(TEXTS[:50]), lambda texts: torch.ones(len(texts), 3))
    assert not found.any()


@pytest.fixture
def command(tmp_path):
    (tmp_path / "mine.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return ["--preset=own-text", f"--train_file={tmp_path / 'mine.txt'}", "--dim=16"]


def read_record(folder):
    return json.loads((folder / "run.json").read_text())


def test_a_resumed_run_reports_the_same_on_console_page_and_card(
    command, tmp_path, capsys, monkeypatch
):
    command.append("--num_train_epochs=3")
    out, resumed = tmp_path / "out", tmp_path / "resumed"
    assert main([*command, f"--output_dir={out}"]) == 0
    record = read_record(out)
    printed = capsys.readouterr().out
    page, card = ((out / name).read_text() for name in ("report.html", "README.md"))
    result, meaning = outcome(RunRecord.from_json(record))
    assert f"\n{result}\n{meaning}\n" in printed
    assert f"<p>{result}" in page
    assert meaning in card
    lexical, untrained, trained = (
        each[METRIC] for each in (record["lexical"], record["untrained"]["avg"], record["trained"])
    )
    assert f"| {METRIC} | {lexical:.2f} | {untrained:.2f} | {trained:.2f} |" in card
    assert record["held_out"]["texts"] == 70
    assert record["held_out"]["gain"] == pytest.approx(trained - untrained, abs=0.01)

    step = Trainer._step

    def killed(trainer, batches):
        if trainer.state.step == 4:
            raise KeyboardInterrupt
        step(trainer, batches)

    command += [f"--output_dir={resumed}", "--save_steps=2"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", killed)
        assert main(command) == 130
    assert main([*command, "--resume_from_checkpoint"]) == 0
    again = read_record(resumed)
    for name in ("held_out", "trained", "untrained", "lexical"):
        assert again[name] == record[name]


@pytest.mark.parametrize(
    "option", ["--held_out=0", "--eval_set=mini_sts", "--max_train_samples=49"]
)
def test_no_held_out_texts_when_disabled_or_few(command, option, tmp_path):
    assert main([*command, "--max_steps=1", f"--output_dir={tmp_path / 'out'}", option]) == 0
    assert "held_out" not in read_record(tmp_path / "out")


def test_a_hybrid_is_compared_with_its_dense_model():
    record = RunRecord(
        held_out=HeldOut(70, 3.0, 1.0, metric=OF_PAIRS),
        settings={"pooler_type": "avg"},
        untrained={BASE: {OF_PAIRS: 50.0}, "avg": {OF_PAIRS: 54.0}},
        trained={OF_PAIRS: 53.0},
        lexical={OF_PAIRS: 55.0},
    )
    assert f"trained - {BASE} = +3.00" in outcome(record)[0]
