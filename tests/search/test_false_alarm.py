"""Search by false-alarm rate: thresholds against NumPy's quantiles, what an index keeps, and the calibrate program."""

import json

import numpy as np
import pytest
from conftest import make_sentences
from search_cases import Drawn, saved_model, unit

from dystress_text.calibrate import drawn, main
from dystress_text.errors import UserError
from dystress_text.evaluation.random_pairs import RandomPairs, random_pairs
from dystress_text.search import SentenceIndex, add_to_index, calibrate_index
from dystress_text.search.__main__ import main as search

TEXTS = [f"text {i}" for i in range(300)]


def vectors_of(sentences):
    return unit(Drawn().encode(sentences, batch_size=1, show_progress_bar=False).astype(np.float64))


@pytest.fixture(scope="module")
def pairs():
    return random_pairs(vectors_of([f"other {i}" for i in range(600)]), "others")


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_a_threshold_by_its_rate(pairs, dtype, tmp_path):
    others = vectors_of([f"other {i}" for i in range(600)])
    expected = np.quantile((others @ others.T)[np.triu_indices(600, 1)], 1 - 0.05)
    index = SentenceIndex.build(Drawn(), TEXTS, dtype=dtype, random_pairs=pairs)
    everything = index.search("text 5", 300)[0]
    found = index.search("text 5", 300, false_alarm=0.05)[0]
    assert 5 < len(found) < 30
    assert found[-1].score > expected - 1e-3
    assert everything[len(found)].score < expected + 1e-3
    assert found == everything[: len(found)]
    assert found[0].false_alarm == pytest.approx(pairs.finest)
    assert found[-1].false_alarm <= 0.0501 < everything[len(found)].false_alarm + 0.001
    assert index.search("text 5", 300, threshold=0.9, false_alarm=0.05)[0] == everything[:1]  # both hold
    index.save(tmp_path / "idx")
    for kept in (SentenceIndex.load(tmp_path / "idx", Drawn()), add_to_index(Drawn(), ["more"], tmp_path / "idx")):
        assert kept.random_pairs == pairs
    assert index.add(["more"]).random_pairs == pairs
    (tmp_path / "idx" / "random_pairs.json").write_text("{}")
    with pytest.raises(UserError, match=r"damaged: random_pairs\.json is not what was written"):
        SentenceIndex.load(tmp_path / "idx", Drawn())


def test_what_has_no_rate_is_one_line(pairs):
    binary = SentenceIndex.build(Drawn(), TEXTS, dtype="binary", random_pairs=pairs)
    assert {match.false_alarm for match in binary.search("text 5")[0]} == {None}
    plain = SentenceIndex.build(Drawn(), TEXTS)
    known = SentenceIndex.build(Drawn(), TEXTS, random_pairs=pairs)
    for index, rate, message in (
        (binary, 0.1, "no cosines"),
        (plain, 0.1, "calibrate --index"),
        (known, 2.0, r"\(0, 1\)"),
        (known, 1e-6, "finer"),
    ):
        with pytest.raises(UserError, match=f"^--false_alarm: .*{message}.*$"):
            index.search("text 5", false_alarm=rate)


def test_an_index_is_calibrated_on_its_own_sentences(tmp_path, capsys):
    SentenceIndex.build(Drawn(), [*TEXTS, "text 5"], folder=tmp_path / "idx")
    found = calibrate_index(tmp_path / "idx")
    vectors = vectors_of(TEXTS)
    cosines = (vectors @ vectors.T)[np.triu_indices(300, 1)]
    assert found.threshold(0.01) == pytest.approx(np.quantile(cosines, 0.99), abs=5e-3)
    assert (found.sentences, found.source) == (300, "the index idx")
    assert SentenceIndex.load(tmp_path / "idx", Drawn()).random_pairs == found
    assert main(["--index", str(tmp_path / "idx")]) == 0
    assert "44,850 random pairs of 300 sentences of the index idx\n" in capsys.readouterr().out
    SentenceIndex.build(Drawn(), TEXTS, dtype="binary", folder=tmp_path / "bits")
    assert main(["--index", str(tmp_path / "bits")]) == 2
    assert main(["--index", str(tmp_path / "none")]) == 2


def test_a_model_is_calibrated_and_its_index_searched(tiny_bert, tmp_path, capsys):
    model, file, index = saved_model(tiny_bert, tmp_path / "out"), tmp_path / "mine.txt", tmp_path / "idx"
    file.write_text("".join(f"{sentence}\n" for sentence in make_sentences(300)), encoding="utf-8")
    assert main(["--model", str(model), "--file", str(file), "--sentences", "200"]) == 0
    found = RandomPairs.load(model)
    assert found.source == "mine.txt"
    assert f"{found.threshold(0.1):.3f}\n" in capsys.readouterr().out
    assert search(["build", "--model", str(model), "--file", str(file), "--index", str(index)]) == 0
    query = ["query", "--model", str(model), "--index", str(index), make_sentences(300)[7], "--false_alarm"]
    capsys.readouterr()
    assert search([*query, "0.02", "--json"]) == 0
    matches = json.loads(capsys.readouterr().out)["matches"]
    assert matches[0]["score"] >= matches[-1]["score"] >= found.threshold(0.02)
    assert search([*query, "0.02"]) == 0
    assert f"  {matches[0]['score']:.4f}  <{found.finest:.1e}  " in capsys.readouterr().out
    for arguments in ([*query, "0"], [*query, "nan"], [*query, "1e-9"]):
        assert search(arguments) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "out"], "--model and --file are needed, or --index"),
        (["--model", "out", "--file", "mine.txt"], "'out' is none"),
        (["--model", "out", "--index", "idx"], "--model: not with --index"),
        (["--model", "out", "--file", "few.txt", "--output", "."], "50 distinct sentences are needed, got 2"),
        (["--model", "out", "--file", "none.txt", "--output", "."], "cannot read 'none.txt'"),
        (["--model", "out", "--file", "few.txt", "--sentences", "20000"], "from 50 to 10000"),
    ],
)
def test_what_cannot_be_calibrated_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.txt").write_text("One.\nTwo.\nOne.\n")
    assert main(arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_sentences_are_drawn_evenly():
    kept = np.array([int(sentence) for sentence in drawn(map(str, range(20_000)), 2_000)])
    assert len(set(kept)) == 2_000
    assert np.histogram(kept, 10, (0, 20_000))[0] == pytest.approx(200, abs=55)  # four standard deviations
