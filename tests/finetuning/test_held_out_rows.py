"""Held-out rows: selection, metrics against loops, and what a run reports."""

import json
from unicodedata import normalize

import numpy as np
import pytest
import torch
from conftest import make_sentences
from scipy.stats import sem
from sklearn.metrics.pairwise import cosine_similarity

from dystress_text.analysis.finished_run import held_out_lines
from dystress_text.errors import ParameterError
from dystress_text.finetuning.arguments import parse
from dystress_text.finetuning.held_out import RECALL, bm25_hits, dense_hits, hold_out, recall_gain
from dystress_text.programs.train import main, train
from dystress_text.training.run_record import BASE, HeldOut, RunRecord
from dystress_text.training.trainer import Trainer

METRIC = RECALL.name

WORDS = [[*text.split(), f"tree{i}"] for i, text in enumerate(make_sentences(300))]
ROWS = [(f"day {i} {' '.join(words[::2])}", " ".join(words[1:])) for i, words in enumerate(WORDS)]


def test_rows_are_held_out_evenly():
    held, excluded = hold_out(ROWS, 500)
    assert [ROWS[i] for i in excluded] == held
    assert np.diff(excluded).tolist() == [10] * 29
    assert len(hold_out(ROWS, 9)[0]) == 9


@pytest.mark.parametrize(("rows", "count"), [(49, 0), (50, 25), (260, 26)])
def test_number_of_held_out_rows(rows, count):
    assert len(hold_out(ROWS[:rows], 500)[0]) == count


def test_held_out_rows_share_no_text():
    rows = [(f"question {i // 2}", f"answer {i}", "other") for i in range(300)]
    rows += [(f"late {i}", f"answer {i}", "other") for i in range(300)]
    held, excluded = hold_out(rows, 500)
    anchors = {row[0] for row in held}
    positives = {row[1] for row in held}
    assert len(anchors) == len(positives) == len(held) == 25
    expected = [i for i, row in enumerate(rows) if row[0] in anchors or row[1] in positives]
    assert excluded.tolist() == expected


def fullwidth(text):
    return "".join(chr(ord(x) + 0xFEE0) if "a" <= x <= "z" else x for x in text)


def spaced(text):
    return text.replace(" ", "\u00a0  ") + "\t"


@pytest.mark.parametrize("written", [str, str.upper, spaced, fullwidth])
def test_a_held_out_text_is_in_no_column_of_a_training_row(written):
    rows = [(f"ask {i}", f"answer to {i}", "no", "nor this") for i in range(60)]
    copies = []
    for i, row in enumerate(rows):
        copy = [f"one {i}", f"two {i}", f"three {i}", f"four {i}"]
        copy[i // 2 % 4] = written(row[i % 2])
        copies.append(tuple(copy))
    every = [*copies[:30], *rows, *copies[30:]]
    held, excluded = hold_out(every, 500)
    assert len(held) == 25
    texts = {text for row in held for text in row[:2]}
    trained = [row for i, row in enumerate(every) if i not in excluded]
    plain = [" ".join(normalize("NFKC", x).lower().split()) for row in trained for x in row]
    assert texts.isdisjoint(plain)
    assert len(trained) > 60


def test_nothing_is_held_out_if_too_few_rows_remain():
    rows = [(f"ask {i}", f"answer {i}", f"answer {(i + 1) % 300}", "no") for i in range(300)]
    every = [(f"ask {i}", f"answer {i}", *(f"answer {j}" for j in range(60))) for i in range(60)]
    assert len(hold_out(rows, 500)[0]) == 30
    assert hold_out([*ROWS[:49], *[ROWS[1]] * 30], 500)[0] == []
    held, excluded = hold_out(every, 500)
    assert (held, excluded.tolist()) == ([], [])


def test_random_pairs_are_not_learned_from_the_swapped_rows(tmp_path):
    """Anchor and positive share no word, so that only their swapped row could teach the pair."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*"abcdefghijklmnoprstu"], 7)) for _ in range(4000)]
    pairs = [(" ".join(rng.choice(words, 6)), " ".join(rng.choice(words, 6))) for _ in range(400)]
    rows = [*pairs, *((second, first) for first, second in pairs)]
    options = {"dim": 64, "supervised": True, "num_train_epochs": 12, "learning_rate": 0.05}
    run = train("own-text", texts=rows, output_dir=tmp_path / "out", eval_set="none", **options)
    held = run.record.held_out
    assert held.texts == 40
    assert abs(held.gain) < 4 * held.error


def test_recall_is_that_of_a_loop():
    rng = np.random.default_rng(1)
    anchors = rng.normal(size=(30, 3))
    positives = anchors + 0.8 * rng.normal(size=(30, 3))
    vectors = {f"anchor {i}": anchor for i, anchor in enumerate(anchors)}
    vectors |= {f"positive {i}": positive for i, positive in enumerate(positives)}
    rows = [(f"anchor {i}", f"positive {i}") for i in range(30)]
    hits = dense_hits(rows, lambda texts: torch.tensor(np.array([vectors[x] for x in texts])))
    best = cosine_similarity(anchors, positives).argmax(1)
    assert hits.tolist() == (best == np.arange(30)).tolist()
    assert 3 < hits.sum() < 27
    found = recall_gain(hits, hits[::-1])
    gains = 100 * (hits[::-1] - hits)
    assert found.texts == 30
    assert found.gain == pytest.approx(gains.mean())
    # Bonett and Price: one more of each kind, with n instead of n - 1
    assert found.error == pytest.approx(sem([*gains, 100, -100], ddof=0))


def test_a_users_pairs_of_the_same_name_are_another_set():
    assert RECALL.is_on("held-out", "pairs")
    assert not RECALL.is_on("pairs", "pairs")


def test_collapsed_embeddings_find_nothing():
    assert not dense_hits(ROWS[:50], lambda texts: torch.ones(len(texts), 3)).any()


def test_bm25_finds_a_document_by_its_words():
    rows = [("red cats sleep", "cats dream"), ("blue dogs", "dogs bark"), ("birds", "fish swim")]
    tie = [("dogs", "dogs bark")]
    assert bm25_hits(rows).tolist() == [1, 1, 0]
    assert bm25_hits(rows + tie).tolist() == [1, 0, 0, 0]


@pytest.fixture
def command(tmp_path):
    lines = ["\t".join(row) for row in [("anchor", "positive"), *ROWS]]
    (tmp_path / "mine.tsv").write_text("\n".join(lines) + "\n")
    file = f"--train_file={tmp_path / 'mine.tsv'}"
    return ["--preset=own-text", "--supervised", file, "--dim=16"]


def read_record(folder):
    return json.loads((folder / "run.json").read_text())


def test_a_resumed_run_reports_the_same_on_console_page_and_card(
    command, tmp_path, capsys, monkeypatch
):
    command.append("--num_train_epochs=4")
    out = tmp_path / "out"
    assert main([*command, f"--output_dir={out}"]) == 0
    record = read_record(out)
    gain, meaning = held_out_lines(RunRecord.from_json(record))
    assert f"\n{gain}\n{meaning}\n" in capsys.readouterr().out
    assert f"<p>{gain}" in (out / "report.html").read_text()
    card = (out / "README.md").read_text()
    assert meaning.removeprefix("This ") in card
    lexical = record["lexical"][METRIC]
    untrained = record["untrained"]["avg"][METRIC]
    trained = record["trained"][METRIC]
    assert f"| {METRIC} | {untrained:.2f} | {trained:.2f} | {lexical:.2f} |" in card
    assert record["held_out"]["texts"] == 30
    assert record["held_out"]["gain"] == pytest.approx(trained - untrained, abs=0.01)

    step = Trainer._step

    def killed(trainer, batches):
        if trainer.state.step == 3:
            raise KeyboardInterrupt
        step(trainer, batches)

    command += [f"--output_dir={tmp_path / 'resumed'}", "--save_steps=2"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", killed)
        assert main(command) == 130
    assert main([*command, "--resume_from_checkpoint"]) == 0
    again = read_record(tmp_path / "resumed")
    for name in ("held_out", "trained", "untrained", "lexical"):
        assert again[name] == record[name]


@pytest.mark.parametrize("option", ["--held_out=0", "--max_train_samples=49"])
def test_no_rows_are_held_out_when_disabled_or_few(command, option, tmp_path):
    assert main([*command, "--max_steps=1", f"--output_dir={tmp_path / 'out'}", option]) == 0
    assert "held_out" not in read_record(tmp_path / "out")


def test_a_hybrid_is_compared_with_its_dense_model():
    record = RunRecord(
        held_out=HeldOut(70, 3.0, 1.0),
        settings={"pooler_type": "avg"},
        untrained={BASE: {METRIC: 50.0}, "avg": {METRIC: 54.0}},
        trained={METRIC: 53.0},
        lexical={METRIC: 55.0},
        metrics={METRIC: RECALL},
    )
    assert f"trained - {BASE}: +3.0" in held_out_lines(record)[0]


def test_only_rows_can_be_held_out():
    with pytest.raises(ParameterError, match="supervised"):
        parse(["--preset=own-text", "--held_out=100"])
    parse(["--preset=own-text", "--held_out=0"])
