"""Judgements: what is shown, how it is answered, and the collection that results."""

import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
from conftest import make_sentences
from model_cases import build_model
from processes import wait_for
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import semantic_search
from sklearn.metrics import ndcg_score

from dystress_text import __main__ as dystress
from dystress_text.evaluation.results import read_results
from dystress_text.models.loading import save_model

TEXTS = [*make_sentences(60), "a cat sat " * 800]
QUERIES = ["a cat sat", "zebra", "two birds flew over the river"]  # BM25 finds no zebra


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_model(build_model("bert"), folder / "A")
    save_model(build_model("roberta"), folder / "B")
    return folder


@pytest.fixture(autouse=True)
def files(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("A", "B"):
        Path(name).symlink_to(models / name)
    Path("mine.txt").write_text("\n".join([*TEXTS, TEXTS[0]]))
    Path("queries.txt").write_text("\n".join([*QUERIES, QUERIES[0]]))


def arguments(*models, text="mine.txt", output="judged"):
    files = [f"--train_file={text}", "--queries=queries.txt", f"--output={output}"]
    return ["judge", "--model", *models, *files]


def judge(keys, *models, **options):
    Path("keys.txt").write_text(keys)
    return dystress.main([*arguments(*models, **options), "--answers=keys.txt"])


def record():
    return json.loads(Path("judged/judge.json").read_text())


def keys_of(relevant):
    return "".join("r" if relevant(*pair) else "n" for pair in record()["shown"])


def loaded(name):
    return SentenceTransformer(name, device="cpu")


def test_the_first_five_of_each_model_are_shown_once_and_shuffled():
    assert judge("", "A", "B") == 2  # too few keys: the folder is there, and no answer
    shown = record()["shown"]
    assert len({*map(tuple, shown)}) == len(shown)
    assert [query for query, _ in shown] == sorted(query for query, _ in shown)
    assert shown != sorted(shown)
    pool = {tuple(pair) for pair in shown}
    for name in "AB":
        model = loaded(name)
        hits = semantic_search(model.encode(QUERIES), model.encode(TEXTS), top_k=5)
        for query, found in enumerate(hits):
            assert pool >= {(query, hit["corpus_id"]) for hit in found}
    assert len(pool) <= 3 * 5 * len(QUERIES)


def test_figures_are_of_the_shown_documents_alone():
    texts = [*dict.fromkeys([*TEXTS, *make_sentences(300, seed=1)])]  # recall@100 reads fewer
    Path("more.txt").write_text("\n".join(texts))
    judge("", "A", "B", text="more.txt")
    keys = keys_of(lambda query, document: document % 3 == query)
    assert judge(keys, "A", "B", text="more.txt") == 0
    pool = [tuple(pair) for pair in record()["shown"]]
    expected = []
    model = loaded("A")
    vectors = model.encode(texts)
    for query, text in enumerate(QUERIES):
        shown = [document for found, document in pool if found == query]
        gains = np.array([document % 3 == query for document in shown])
        if gains.any():
            similarity = model.similarity(model.encode(text), vectors[shown])
            expected.append(ndcg_score([gains], similarity.numpy(), k=10))
    first = read_results(Path("judged/results.jsonl"))[0]
    assert first.figures["nDCG@10"] == pytest.approx(100 * np.mean(expected), abs=0.01)
    again = ["evaluate", "--model", "A", "--retrieval=judged", "--output=again.jsonl"]
    assert dystress.main(again) == 0
    assert read_results(Path("again.jsonl"))[0].figures == first.figures


def test_skipped_documents_are_not_judged():
    judge("", "A")
    shown = record()["shown"]
    judge("r" + "s" * (len(shown) - 1), "A")
    (row,) = Path("judged/qrels.tsv").read_text().splitlines()[1:]
    query, document = shown[0]
    assert row == f"q{query}\tc{document}\t1"


WRONG = {
    "--model": [lambda: judge("", "A", "A"), lambda: judge("", "A", "copy")],
    "--output": [
        lambda: judge("", "B"),
        lambda: judge("", "A", text="other.txt"),
        lambda: judge("", "A", output="copy"),
    ],
    "--answers": [
        lambda: judge("rn", "A"),
        lambda: judge("x" * 15, "A"),
        lambda: dystress.main(arguments("A")),  # not a terminal
    ],
    "--train_file": [lambda: judge("", "A", text="empty.txt")],
}


@pytest.mark.parametrize("named", WRONG)
def test_what_cannot_be_judged_is_refused(named, capsys):
    save_model(loaded("A"), Path("copy"))
    Path("other.txt").write_text("\n".join(TEXTS[1:]))
    Path("empty.txt").write_text("\n")
    judge("", "A")
    before = record()
    capsys.readouterr()
    for call in WRONG[named]:
        assert call() == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert named in line
        assert record() == before


@pytest.mark.slow(20)
def test_keys_in_a_terminal_are_saved_at_once():
    """Interrupted after three of the documents, it goes on with the rest."""
    terminal, inside = pty.openpty()
    termios.tcsetwinsize(inside, (24, 80))
    command = [sys.executable, "-m", "dystress_text", *arguments("A")]
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=subprocess.DEVNULL)

    def asks():
        return not termios.tcgetattr(terminal)[3] & termios.ICANON

    for key, answers in (("n", "n"), ("u", ""), ("r", "r"), ("s", "rs"), ("n", "rsn")):
        wait_for(asks)
        os.write(terminal, key.encode())
        wait_for(lambda answers=answers: record()["answers"] == answers)
    wait_for(asks)
    os.write(terminal, b"\x03")
    assert process.wait(60) == 130
    os.set_blocking(terminal, False)
    screen = os.read(terminal, 65536).decode()
    assert max(map(len, screen.splitlines())) < 80
    assert "[...]" in screen  # a long document is cut
    assert screen.endswith("quit: \r\n")  # the message of the interruption has its own line
    left = len(record()["shown"]) - 3
    assert judge("n" * left, "A") == 0
    assert record()["answers"] == "rsn" + left * "n"
