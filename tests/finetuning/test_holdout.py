"""Held-out texts and rows: which, how texts are cut, the figures against loops, what a run says."""

import json
import re
from collections import Counter
from math import log

import numpy as np
import pytest
import torch
from scipy.stats import sem
from sklearn.metrics.pairwise import cosine_similarity

from dystress_text.finetuning import holdout
from dystress_text.finetuning.holdout import (
    METRIC,
    OF_PAIRS,
    by_words,
    compared,
    halves_of,
    hold_out,
    measure,
    outcome,
)
from dystress_text.programs.train import main
from dystress_text.training.run_record import BASE, HeldOut, RunRecord
from dystress_text.training.trainer import Trainer

RNG = np.random.default_rng(0)
VOCABULARY = [
    "harbour",
    "bridge",
    "winter",
    "stone",
    "garden",
    "letter",
    "music",
    "river",
    "window",
    "market",
    "forest",
    "village",
    "doctor",
    "teacher",
    "summer",
    "engine",
    "silver",
    "island",
    "kitchen",
]
TEXTS = [f"{' '.join(RNG.choice(RNG.choice(VOCABULARY, 5), 11))} n{i}" for i in range(700)]


def text_file(tmp_path, lines=TEXTS):
    file = tmp_path / "mine.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def held_of(lines, most=500):
    """Return the texts that are held out, and the numbers of those that are not trained on."""
    held, numbers = hold_out(lambda: ((line,) for line in lines), most)
    return [line for (line,) in held], numbers.tolist()


def texts_of(lines):
    return [(line,) for line in lines]


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("one, two three four five", "one, two", "three four five"),
        ("  two \u00a0 words ", "  two", "words "),
        ("猫は古い橋の近くで眠る。", "猫は古い橋", "の近くで眠る。"),
        ("ab 猫 cd 犬", "ab 猫", "cd 犬"),
    ],
)
def test_a_text_is_cut_at_the_middle_word(text, first, second):
    found = [half.strip() for half in halves_of(text)]
    assert found == [first.strip(), second.strip()] or (
        text[0] == "猫" and found == ["猫は古い橋の", "近くで眠る。"]
    )


def test_texts_are_held_out_at_even_distances_with_their_copies_and_never_short_ones():
    lines = [*TEXTS, *(text.upper() for text in TEXTS[60:160])]
    lines[30:60] = [f"short {i}" for i in range(30)]
    held, numbers = held_of(lines)
    assert len({*held}) == len(held) == 67  # a tenth of the 670 that are distinct and long enough
    assert {lines[i].lower() for i in numbers} == {*held}
    assert not {line.lower() for i, line in enumerate(lines) if i not in numbers} & {*held}
    places = [lines.index(text) for text in held]
    assert set(np.diff([place for place in places if place > 60])) == {10}
    assert len(held_of(lines, 60)[0]) == 60
    assert len(held_of(lines, 9)[0]) == 9


@pytest.mark.parametrize(("texts", "count"), [(49, 0), (50, 25), (249, 25), (260, 26), (700, 70)])
def test_a_tenth_is_held_out_and_25_of_few_texts_but_never_more_than_half(texts, count):
    assert len(held_of(TEXTS[:texts])[0]) == count
    short = [f"word{i}" for i in range(700)]
    assert len(held_of([*TEXTS[:texts], *short, *TEXTS[:texts]])[0]) == count


def test_a_held_out_anchor_is_not_trained_on_and_no_two_rows_have_one_positive():
    rows = [(f"question {i // 2}", f"answer {i}", "other") for i in range(300)]
    rows += [(f"late {i}", f"answer {i}", "other") for i in range(300)]
    rows += [("same", "same", "other")]
    held, numbers = hold_out(lambda: iter(rows), 500)
    assert len(held) == 25  # of 150 distinct anchors
    assert {*held} <= {*rows}
    anchors = {row[0] for row in held}
    assert len(anchors) == len({row[1] for row in held}) == len(held)
    assert numbers.tolist() == [i for i, row in enumerate(rows) if row[0] in anchors]
    assert not {row[0] for row in rows[300:]} & anchors  # their positives came before


def test_the_figure_of_an_encoder_is_that_of_a_loop(tmp_path):
    texts, table = TEXTS[:80], {}
    texts[3] = "same same same same same same same same"

    def encode(sentences):
        for s in sentences:
            words = [np.random.default_rng([*map(ord, word)]).normal(size=6) for word in s.split()]
            table[s] = np.mean(words, axis=0)
        return torch.tensor(np.array([table[s] for s in sentences]))

    found, nearest = measure(texts_of(texts), encode)
    cut = [
        (" ".join(t.split()[: len(t.split()) // 2]), " ".join(t.split()[len(t.split()) // 2 :]))
        for t in texts
    ]
    expected = []
    for first, own in cut:
        cosines = [cosine_similarity([table[first]], [table[second]])[0, 0] for _, second in cut]
        mine = cosine_similarity([table[first]], [table[own]])[0, 0]
        expected.append(float(sum(c >= mine - 1e-9 for c in cosines) == 1))
    assert found.tolist() == expected
    assert 0 < sum(expected) < len(texts) / 2
    near = cosine_similarity([table[t] for t in texts], [table[t] for t in texts]) - 3 * np.eye(
        len(texts)
    )
    assert nearest == near.argmax(1).tolist()
    texts[60] = "x" * 300
    searches = texts_of(texts)
    record = compared(searches, (found, [60] * 80), (found[::-1], [7] * 80))
    assert record["neighbours"] == [[text, "x" * 200 + "…", texts[7]] for text in texts[:5]]
    gains = [100.0 * (x - y) for x, y in zip(expected[::-1], expected, strict=True)]
    assert record["gain"] == pytest.approx(np.mean(gains))
    # Bonett and Price: one more of each kind, with n instead of n - 1
    assert record["error"] == pytest.approx(sem([*gains, 100, -100], ddof=0))
    alike = compared(searches, (found, nearest), (found, nearest))
    assert (alike["gain"], alike["error"] > 0) == (0, True)
    assert compared(texts_of(TEXTS[:1]), (found[:1], [0]), (found[:1], [0]))["error"] is None


def test_the_figure_of_pairs_is_that_of_a_loop():
    rng = np.random.default_rng(1)
    rows = [(f"anchor {i}", f"positive {i}") for i in range(30)]
    anchors = rng.normal(size=(30, 3))
    positives = anchors + 0.8 * rng.normal(size=(30, 3))
    table = {row[0]: vector for row, vector in zip(rows, anchors, strict=True)}
    table |= {row[1]: vector for row, vector in zip(rows, positives, strict=True)}
    found, _ = measure(rows, lambda texts: torch.tensor(np.array([table[t] for t in texts])))
    cosines = cosine_similarity(anchors, positives)
    best = [max(range(30), key=lambda j: row[j]) for row in cosines]
    assert found.tolist() == [float(near == i) for i, near in enumerate(best)]
    assert 3 < found.sum() < 27
    assert compared(rows, (found, best), (found, best))["metric"] == OF_PAIRS


def test_words_have_the_ranks_of_a_loop_over_bm25():
    texts = [t.upper() + "!" if i % 2 else t for i, t in enumerate(TEXTS[:60])] + [
        "猫は古い橋の近くの暖かい石の上で眠る",
        "犬は新しい家の前の冷たい水の中で泳ぐ",
    ]
    cut = []
    for text in texts:
        words = list(text) if text[0] in "猫犬" else re.findall(r"\w+", text.lower())
        cut.append((words[: len(words) // 2], words[len(words) // 2 :]))
    mean, df = np.mean([len(d) for _, d in cut]), Counter(w for _, d in cut for w in set(d))

    def score(query, document):
        tf = Counter(document)
        return sum(
            log(1 + (len(cut) - df[w] + 0.5) / (df[w] + 0.5))
            * tf[w]
            / (tf[w] + 1.5 * (0.25 + 0.75 * len(document) / mean))
            for w in query
            if tf[w]
        )

    expected = []
    for first, own in cut:
        scores, mine = [score(first, second) for _, second in cut], score(first, own)
        expected.append(float(sum(s >= mine - 1e-6 for s in scores) == 1))
    assert by_words(texts_of(texts)).tolist() == expected
    assert len(texts) / 9 < sum(expected) < len(texts)
    marks = ["! ! ! ! ! ! ! !", "? ? ? ? ? ? ? ?", "— — — — — —"]
    assert by_words(texts_of(marks)).tolist() == [1, 1, 1]


def test_a_model_that_gives_one_vector_for_all_finds_none():
    assert holdout._found(
        np.array([[0.5, 0.5 - 1e-8, 0.1], [0.2, 0.3, 0.2], [1, 0, 0.9]])
    ).tolist() == [0, 1, 0]
    assert (
        measure(texts_of(TEXTS[:50]), lambda texts: torch.ones(len(texts), 3))[0].tolist()
        == [0] * 50
    )


def test_a_run_says_whether_it_helped_on_console_page_and_card_and_a_resumed_one_says_the_same(
    tmp_path, capsys, monkeypatch
):
    text_file(tmp_path)
    line = [
        "--preset=own-text",
        f"--train_file={tmp_path / 'mine.txt'}",
        "--dim=16",
        "--num_train_epochs=3",
    ]
    assert main([*line, f"--output_dir={tmp_path / 'out'}"]) == 0
    record, out = json.loads((tmp_path / "out" / "run.json").read_text()), capsys.readouterr().out
    said, meaning = outcome(RunRecord.from_json(record))
    assert f"\n{said}\n{meaning}\n" in out
    figures = [
        record["untrained"]["avg"][METRIC],
        record["trained"][METRIC],
        record["lexical"][METRIC],
    ]
    assert [float(x) for x in re.findall(r"(?:untrained|trained|BM25) ([\d.]+)", said)] == [
        round(x, 1) for x in figures
    ]
    assert (
        record["held_out"]["texts"],
        "630 samples: " in out,
        "\n70 samples are held out" in out,
    ) == (70, True, True)
    assert record["held_out"]["gain"] == pytest.approx(figures[1] - figures[0], abs=0.01)
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"<p>{said}" in page
    rows = [cell for row in record["held_out"]["neighbours"] for cell in row]
    assert len(rows) == 15
    assert all(f'<td class="text">{cell}</td>' in page for cell in rows)
    assert meaning in page
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| {METRIC} | {figures[2]:.2f} | {figures[0]:.2f} | {figures[1]:.2f} |" in card
    assert meaning in card

    step, resumed = Trainer._step, [*line, f"--output_dir={tmp_path / 'two'}", "--save_steps=2"]

    def killed(trainer, batches):
        if trainer.state.step == 4:
            raise KeyboardInterrupt
        step(trainer, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", killed)
        assert main(resumed) == 130
    assert main([*resumed, "--resume_from_checkpoint"]) == 0
    again = json.loads((tmp_path / "two" / "run.json").read_text())
    assert [again[name] for name in ("halves", "trained", "untrained", "words")] == [
        record[name] for name in ("halves", "trained", "untrained", "words")
    ]


def test_a_text_without_spaces_is_held_out_and_measured_by_its_characters(tmp_path):
    kana = [chr(0x3042 + 2 * i) for i in range(30)]
    corpus_of_kana = ["".join(RNG.choice(RNG.choice(kana, 6), 16)) for _ in range(600)]
    (tmp_path / "mine.txt").write_text("\n".join(corpus_of_kana) + "\n", encoding="utf-8")
    line = [
        "--preset=own-text",
        f"--train_file={tmp_path / 'mine.txt'}",
        "--vocabulary=text",
        "--dim=64",
    ]
    assert main([*line, "--max_steps=2", f"--output_dir={tmp_path / 'out'}"]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["held_out"]["texts"] == 60
    assert record["lexical"][METRIC] > 50  # by chance 1.7; words between spaces have 0
    assert {text for row in record["held_out"]["neighbours"] for text in row} <= {*corpus_of_kana}


def test_who_has_few_texts_or_scored_pairs_or_says_no_has_none_held_out(tmp_path, capsys):
    text_file(tmp_path)
    line = [
        f"--train_file={tmp_path / 'mine.txt'}",
        "--dim=4",
        "--max_steps=1",
        f"--output_dir={tmp_path / 'out'}",
    ]
    line += ["--preset=own-text", "--overwrite_output_dir"]
    for more in (["--held_out=0"], ["--eval_set=mini_sts"], ["--max_train_samples=49"]):
        assert main([*line, *more]) == 0
        record, out = (
            json.loads((tmp_path / "out" / "run.json").read_text()),
            capsys.readouterr().out,
        )
        assert "halves" not in record
        assert outcome(RunRecord.from_json(record)) == []
        assert ("no samples are held out: " in out) == ("49" in more[0])
    assert main([*line, "--views=dropout", "--held_out=9"]) == 2
    assert "--held_out: requires --views crop or --supervised" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gain", "error", "flag"), [(3.0, 1.4, ""), (-3.0, 1.4, ""), (3.0, 1.6, "not ")]
)
def test_a_gain_is_significant_from_two_standard_errors_on(gain, error, flag):
    record = RunRecord(
        halves=HeldOut(70, gain, error),
        settings={"pooler_type": "avg"},
        untrained={"avg": {METRIC: 50.0}},
        trained={METRIC: 50 + gain},
        words={METRIC: 55.0},
    )
    line, _, *worse = outcome(record)
    assert line.endswith(f"): {flag}significant")
    assert len(worse) == (gain < 0)


def test_a_hybrid_is_compared_with_its_base_model_alone():
    record = RunRecord(
        halves=HeldOut(70, 3.0, 1.0, metric=OF_PAIRS),
        settings={"pooler_type": "avg"},
        untrained={BASE: {OF_PAIRS: 50.0}, "avg": {OF_PAIRS: 54.0}},
        trained={OF_PAIRS: 53.0},
        words={OF_PAIRS: 55.0},
    )
    line = outcome(record)[0]
    assert f"{BASE} 50.0, untrained 54.0, trained 53.0, BM25 55.0" in line
    assert f"trained - {BASE} = +3.00" in line
