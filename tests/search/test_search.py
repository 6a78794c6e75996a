"""The index: what it finds against brute force, what it keeps on disk, and what it refuses."""

import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_sentences
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import in_new_process
from search_cases import Drawn, saved_model, unit
from sentence_transformers import SentenceTransformer, util

from dystress_text.errors import UserError
from dystress_text.search import add_to_index, build_index, nearest_rows, sentence_index, sentence_vectors
from dystress_text.search.__main__ import main
from dystress_text.search.sentence_index import Match, SentenceIndex

ROOT = Path(__file__).resolve().parents[2]


class Fixed:
    """A model whose sentences are the numbers of its vectors."""

    def __init__(self, vectors):
        self.vectors = vectors

    def encode(self, sentences, /, *, batch_size, show_progress_bar):
        return self.vectors[[int(s) for s in sentences]]


def brute_force(index, query, top_k):
    """All products in fp64; equal ones in the order of their rows."""
    vectors = index.vectors.astype(np.float64)
    if index.stored.scales is not None:
        vectors *= index.stored.scales.astype(np.float64)[:, None]
    scores = (vectors * query.astype(np.float64)).sum(1)
    rows = np.argsort(-scores, kind="stable")[:top_k]
    return scores[rows], rows


def check_exact(index, queries, top_k):
    """Scores and rows are those of brute force, bit for bit."""
    scores, rows = index.nearest(queries, top_k)
    assert scores.shape == rows.shape == (len(queries), min(top_k, len(index.sentences)))
    for query, of_query, found in zip(queries, scores, rows, strict=True):
        expected, places = brute_force(index, query, top_k)
        assert (found == places).all()
        assert (of_query == expected).all()


def texts(n):
    return [f"text {i}" for i in range(n)]


@pytest.fixture(scope="module")
def saved(tiny_bert, tmp_path_factory):
    return saved_model(tiny_bert, tmp_path_factory.mktemp("model") / "out")


@pytest.fixture
def index():
    return SentenceIndex.build(Drawn(), texts(300))


# exact search


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize(("levels", "top_k"), [(None, 1), (1, 1), (None, 7), (1, 7), (1, 5000)])
def test_exact_search_is_brute_force(monkeypatch, dtype, levels, top_k):
    monkeypatch.setattr(nearest_rows, "ROWS", 61)
    monkeypatch.setattr(nearest_rows, "QUERIES", 9)
    monkeypatch.setattr(nearest_rows, "RESCORED", 50)
    index = SentenceIndex.build(Drawn(4, levels=levels), [f"text {i % 400}" for i in range(1000)], dtype=dtype)
    queries = unit(Drawn(4, levels=levels).encode(texts(1000)[::50], batch_size=1, show_progress_bar=False))
    check_exact(index, queries, top_k)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_exact_search_whatever_the_vectors(data):
    n, dim = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    entries = st.sampled_from([0.0, 1.0, -1.0, 1e-3, 1.0000001, 7.0])
    vectors = np.array(data.draw(st.lists(st.lists(entries, min_size=dim, max_size=dim), min_size=n, max_size=n)))
    index = SentenceIndex.build(Fixed(vectors), [str(i) for i in range(n)])
    top_k = data.draw(st.integers(1, 45))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest_rows, "ROWS", data.draw(st.integers(1, 11)))
        check_exact(index, index.vectors, top_k)


@pytest.mark.parametrize("step", [1, -1])
def test_scores_that_rise_or_fall_with_the_row(monkeypatch, step):
    monkeypatch.setattr(nearest_rows, "ROWS", 100)
    angles = np.linspace(1.5, 0, 1000)[::step]
    index = SentenceIndex.build(Fixed(np.stack([np.cos(angles), np.sin(angles)], 1)), [str(i) for i in range(1000)])
    rows = index.nearest(np.array([[1, 0]], dtype=np.float32), 6)[1][0].tolist()
    assert rows == ([999, 998, 997, 996, 995, 994] if step == 1 else [0, 1, 2, 3, 4, 5])


def test_near_ties_that_fp32_cannot_order(monkeypatch):
    monkeypatch.setattr(nearest_rows, "ROWS", 100)
    rng = np.random.default_rng(0)
    centre = rng.standard_normal(768)
    vectors = centre + 1e-4 * rng.standard_normal((3000, 768))
    index = SentenceIndex.build(Fixed(vectors), [str(i) for i in range(3000)])
    check_exact(index, index.vectors[:3], 50)


def test_like_sentence_transformers_own_search(saved):
    model = SentenceTransformer(str(saved), device="cpu")
    sentences, queries = make_sentences(400), make_sentences(30, seed=5)
    found = SentenceIndex.build(model, sentences).search(queries, top_k=8)
    theirs = util.semantic_search(model.encode(queries), model.encode(sentences), top_k=8)
    for mine, other in zip(found, theirs, strict=True):
        assert [m.score for m in mine] == pytest.approx([m["score"] for m in other], abs=2e-6)
        assert [m.sentence for m in mine] == [sentences[m.row] for m in mine]
        assert len({m.row for m in mine} & {m["corpus_id"] for m in other}) >= 7  # the last one may be a near tie
        similarity = model.similarity(model.encode(queries[:1]), model.encode([m.sentence for m in found[0]]))
    assert similarity.shape == (1, 8)


def test_queries(index):
    one = index.search("text 5", top_k=3)
    assert one == index.search(["text 5"], top_k=3)
    assert one[0][0] == Match("text 5", pytest.approx(1.0), 5)
    assert index.search([]) == []
    assert [len(m) for m in index.search(["text 5", "other"], top_k=1000)] == [300, 300]
    assert len(index.search("text 5")[0]) == 5
    scores = [m.score for m in index.search("text 5", top_k=300)[0]]
    assert scores == sorted(scores, reverse=True)
    assert [m.score for m in index.search("text 5", 300, threshold=scores[20])[0]] == scores[:21]
    assert index.search("text 5", threshold=1.1) == [[]]
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        index.search("text 5", top_k=0)


def test_chunks_of_encoding(monkeypatch):
    monkeypatch.setattr(sentence_vectors, "CHUNK", 7)
    model = Drawn()
    index = SentenceIndex.build(model, texts(20))
    assert model.asked == [7, 7, 6]
    assert np.allclose(np.linalg.norm(index.vectors, axis=1), 1)
    raw = torch.tensor(model.encode(texts(20), batch_size=1, show_progress_bar=False))
    assert np.allclose(index.vectors, util.normalize_embeddings(raw))


def test_a_zero_vector_is_like_nothing():
    index = SentenceIndex.build(Fixed(np.array([[0.0, 0], [1, 0], [-1, 0]])), ["0", "1", "2"])
    assert [(m.row, m.score) for m in index.search("1")[0]] == [(1, 1), (0, 0), (2, -1)]


def test_adding_sentences(index, tmp_path):
    more = index.add([f"more {i}" for i in range(50)])
    whole = SentenceIndex.build(Drawn(), texts(300) + [f"more {i}" for i in range(50)])
    assert (more.vectors == whole.vectors).all()
    assert list(more.sentences) == whole.sentences
    assert len(index.sentences) == 300
    more.save(tmp_path / "idx")
    again = SentenceIndex.load(tmp_path / "idx", Drawn()).add(["last"])
    again.save(tmp_path / "idx", overwrite=True)
    found = SentenceIndex.load(tmp_path / "idx", Drawn()).search(["last", "more 3", "text 2"], 1)
    assert [m[0].row for m in found] == [350, 303, 2]


class Constant:
    """A model that gives the same vectors whatever it is asked for."""

    def __init__(self, vectors):
        self.vectors = np.array(vectors)

    def encode(self, sentences, /, **_):
        return self.vectors


@pytest.mark.parametrize(
    ("model", "sentences", "options", "message"),
    [
        (Constant([[np.nan, 1.0]]), ["0"], {}, "NaN or infinite"),
        (Constant([[np.inf, 1.0]]), ["0"], {}, "NaN or infinite"),
        (Constant([1.0]), ["0"], {}, r"shape \(1,\)"),
        (Constant(np.ones((2, 3))), ["0"], {}, r"shape \(2, 3\) for 1"),
        (Drawn(), [], {}, "no sentences"),
        (Drawn(), "text", {}, "got one text"),
        (Drawn(), ["a"], {"dtype": "int4"}, "known are fp32, fp16, int8, binary"),
    ],
)
def test_what_cannot_be_built(model, sentences, options, message):
    with pytest.raises(UserError, match=message):
        SentenceIndex.build(model, sentences, **options)


# on disk


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8", "binary"])
def test_saved_and_loaded(tmp_path, dtype):
    odd = ["", "two\nlines", "cr\r\n", "ünïcödé \N{GRINNING FACE}", "nul \0", " white ", "\n", "same", "same"]
    index = SentenceIndex.build(Drawn(), odd, dtype=dtype)
    index.save(tmp_path / "a" / "idx")
    straight = SentenceIndex.build(Drawn(), odd, dtype=dtype, folder=tmp_path / "b")
    for loaded in (SentenceIndex.load(tmp_path / "a" / "idx", Drawn()), straight):
        assert list(loaded.sentences) == odd
        assert loaded.sentences[-1] == "same"
        assert loaded.sentences[1:3] == odd[1:3]
        with pytest.raises(IndexError):
            loaded.sentences[9]
        assert isinstance(loaded.vectors, np.memmap)
        assert loaded.vectors.dtype == index.vectors.dtype
        assert loaded.search(odd, 4) == index.search(odd, 4)
    names = {f.name: f.stat().st_size for f in (tmp_path / "b").iterdir()}
    scales = {"scales.npy"} if dtype == "int8" else set()
    expected = {"index.json", "vectors.npy", "probe.npy", "sentences.txt", "offsets.npy", "manifest.json"}
    assert set(names) == expected | scales
    assert names["vectors.npy"] == 128 + 9 * 16 * {"fp32": 32, "fp16": 16, "int8": 8, "binary": 1}[dtype] // 8
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    "name", ["index.json", "vectors.npy", "scales.npy", "probe.npy", "sentences.txt", "offsets.npy"]
)
@pytest.mark.parametrize("damage", ["changed", "short", "missing"])
def test_a_damaged_index(tmp_path, name, damage):
    SentenceIndex.build(Drawn(), texts(300), dtype="int8").save(tmp_path / "idx")
    file = tmp_path / "idx" / name
    content = bytearray(file.read_bytes())
    if damage == "changed":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "short":
        file.write_bytes(content[:-9])
    else:
        file.unlink()
    with pytest.raises(UserError, match=rf"damaged: {name}|holds no index"):
        SentenceIndex.load(tmp_path / "idx", Drawn())
    if damage != "changed":  # what sizes tell is told without reading all
        with pytest.raises(UserError, match=r"is damaged|holds no index"):
            SentenceIndex.load(tmp_path / "idx", Drawn(), check=False)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8", "binary"])
def test_an_index_of_another_model(tmp_path, dtype):
    """The same size and other weights, or slightly other ones, are known whatever is stored."""

    class Trained(Drawn):
        def encode(self, sentences, /, **options):
            return super().encode(sentences, **options) + 0.2  # bits stay what they were

    folder = tmp_path / "idx"
    SentenceIndex.build(Drawn(), texts(50), dtype=dtype, folder=folder)
    for other in (Drawn(seed=1), Trained()):
        with pytest.raises(UserError, match="another model: this one gives other vectors"):
            SentenceIndex.load(folder, other)
        with pytest.raises(UserError, match="another model: this one gives other vectors"):
            add_to_index(other, ["more"], folder)
    with pytest.raises(UserError, match="vectors have 16 dimensions, this model's 8"):
        SentenceIndex.load(folder, Drawn(8))
    unchecked = SentenceIndex.load(folder, Drawn(8), check=False)
    with pytest.raises(UserError, match="queries have 8 dimensions, the index has 16"):
        unchecked.search("text")


def test_an_index_of_another_version(index, tmp_path):
    index.save(tmp_path / "idx")
    card = tmp_path / "idx" / "index.json"
    card.write_text(card.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(UserError, match="has format 3, this version reads 2: build it again"):
        SentenceIndex.load(tmp_path / "idx", Drawn(), check=False)


def test_folders_that_are_taken(index, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    index.save(tmp_path / "empty")
    for name, overwrite, message in (
        ("full", False, "is not empty"), ("full", True, "is not empty"), ("file", True, "is a file"),
        ("empty", False, "is not empty"), ("file/idx", False, "cannot write"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            index.save(tmp_path / name, overwrite=overwrite)
    assert (tmp_path / "full" / "mine.txt").read_text() == "x"
    assert len(SentenceIndex.load(tmp_path / "empty", Drawn()).sentences) == 300


def test_a_failure_while_writing_leaves_what_was_there(index, tmp_path, monkeypatch):
    index.save(tmp_path / "idx")
    monkeypatch.setattr(
        sentence_index, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(UserError, match="No space left on device"):
        index.add(["x"]).save(tmp_path / "idx", overwrite=True)
    with pytest.raises(UserError, match="No space left on device"):
        SentenceIndex.build(Drawn(), texts(3), folder=tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["idx"]
    assert len(SentenceIndex.load(tmp_path / "idx", Drawn()).sentences) == 300


class Wide:
    """A model of vectors that take more than their program may."""

    def encode(self, sentences, /, **_):
        return np.random.default_rng(0).standard_normal((len(sentences), 512), dtype=np.float32)


def anonymous():
    """MB of this process that are no mapped files, which are the system's to drop."""
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) / 1e3


def grown_by(folder):
    """MB that building and searching take."""

    def long_texts(n):
        return (f"{i:02000}" for i in range(n))

    build_index(Wide(), long_texts(10_000), folder / "small").search(["x"] * 10)
    before = anonymous()
    build_index(Wide(), long_texts(30_000), folder / "large")
    index = add_to_index(Wide(), long_texts(30_000), folder / "large")
    built = anonymous()
    index.search(["x"] * 10)
    return built - before, anonymous() - before


def test_building_and_searching_take_little_memory(tmp_path):
    built, searched = in_new_process(grown_by, tmp_path)
    assert built < 60  # MB; vectors are 123, sentences 120
    assert searched < 60


# added to on disk


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8", "binary"])
def test_adding_on_disk_is_building_the_whole(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(sentence_vectors, "CHUNK", 7)
    model, lines = Drawn(13), [*texts(20), "odd\nline", "", *texts(30)]
    build_index(model, (line for line in lines[:2]), tmp_path / "idx", dtype=dtype)
    for start, stop in ((2, 15), (15, 16), (16, 52)):
        grown = add_to_index(model, (line for line in lines[start:stop]), tmp_path / "idx")
    whole = SentenceIndex.build(model, lines, dtype=dtype)
    loaded = SentenceIndex.load(tmp_path / "idx", model)
    assert list(loaded.sentences) == list(grown.sentences) == lines
    assert loaded.search(lines[:9], 60) == whole.search(lines[:9], 60)
    whole.save(tmp_path / "whole")
    for name in ("vectors.npy", "sentences.txt", "offsets.npy", "index.json"):
        assert (tmp_path / "idx" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["idx", "whole"]


def test_adding_takes_the_graph_along(tmp_path):
    pytest.importorskip("usearch")
    SentenceIndex.build(Drawn(), texts(1000)).approximate().save(tmp_path / "idx")
    grown = add_to_index(Drawn(), [f"more {i}" for i in range(500)], tmp_path / "idx")
    assert len(grown.graph) == 1500
    found = grown.search([f"more {i}" for i in range(0, 500, 10)], 1)
    assert np.mean([m[0].row == 1000 + 10 * i for i, m in enumerate(found)]) > 0.95


def die_at(kind, name, turn):
    whole, calls = getattr(kind, name), []

    def dying(*arguments):
        calls.append(1)
        if len(calls) == turn:
            os._exit(9)
        return whole(*arguments)

    setattr(kind, name, dying)


def killed_while_adding(folder):
    """At every rename, and while it writes: exit codes and how many sentences were there after each."""
    found = []
    for kind, name, turn in ((Path, "rename", 1), (Path, "rename", 2), (sentence_index, "append", 1)):
        for died in (True, False):
            child = os.fork()
            if not child:
                if died:
                    die_at(kind, name, turn)
                add_to_index(Drawn(), ["one more"], folder)
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            found.append((code, len(SentenceIndex.load(folder, Drawn()).sentences)))
    return found


def test_a_program_that_is_killed_while_adding_leaves_a_whole_index(index, tmp_path):
    index.save(tmp_path / "idx")
    expected = [(9, 300), (0, 301), (9, 301), (0, 302), (9, 302), (0, 303)]
    assert in_new_process(killed_while_adding, tmp_path / "idx") == expected
    assert [p.name for p in tmp_path.iterdir()] == ["idx"]


def test_one_program_writes_at_a_time(index, tmp_path):
    index.save(tmp_path / "idx")

    def lines():
        with pytest.raises(UserError, match="another program is writing the index"):
            add_to_index(Drawn(), ["from elsewhere"], tmp_path / "idx")
        yield "mine"

    assert add_to_index(Drawn(), lines(), tmp_path / "idx").sentences[-1] == "mine"
    with pytest.raises(UserError, match="no sentences to index"):
        add_to_index(Drawn(), iter([]), tmp_path / "idx")
    with pytest.raises(UserError, match="holds no index"):
        add_to_index(Drawn(), ["x"], tmp_path / "none")
    assert len(SentenceIndex.load(tmp_path / "idx", Drawn()).sentences) == 301


# approximate search


def test_approximate_search(tmp_path):
    pytest.importorskip("usearch")
    index = SentenceIndex.build(Drawn(32), texts(5000))
    graph = index.approximate()
    queries = index.vectors[::25]
    rows = index.nearest(queries, 10)[1]
    graph.save(tmp_path / "idx")
    graph.save(tmp_path / "idx", overwrite=True)
    for approximate in (graph, SentenceIndex.load(tmp_path / "idx", Drawn(32))):
        near, found = approximate.nearest(queries, 10)
        assert np.mean([len(set(a) & set(b)) for a, b in zip(rows, found, strict=True)]) > 9.5
        assert (found[:, 0] == np.arange(0, 5000, 25)).mean() > 0.98
        for i in range(len(queries)):
            assert (near[i] == (index.vectors[found[i]].astype(np.float64) * queries[i]).sum(1)).all()
        assert (np.diff(near) <= 0).all()
        assert len(approximate.search("text 7", 1)[0]) == 1
    assert graph.add(["x"]).graph is None
    assert index.graph is None


def test_approximate_search_of_few_sentences():
    pytest.importorskip("usearch")
    index = SentenceIndex.build(Drawn(), texts(5))
    assert index.approximate().search(["text 1", "x"], 9) == index.search(["text 1", "x"], 9)


def test_without_usearch(index, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "usearch", None)
    with pytest.raises(UserError, match=r"pip install 'dystress-text\[search\]'"):
        index.approximate()
    arguments = ["build", "--model", "none", "--file", "none", "--index", str(tmp_path / "idx"), "--approximate"]
    assert main(arguments) == 2
    assert "pip install 'dystress-text[search]'" in capsys.readouterr().err


# the program


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_the_program(saved, text_file, tmp_path, capsys, monkeypatch):
    where = ["--index", tmp_path / "idx", "--model", saved]
    assert run("build", *where, "--file", text_file, "--dtype", "fp16", "--approximate") == 0
    output = capsys.readouterr()
    assert "200 sentences, 16 dimensions, fp16" in output.out
    assert "200 sentences in 200 lines" in output.err
    assert "Loading weights" not in output.err
    lines = text_file.read_text().splitlines()
    more = tmp_path / "more.txt"
    more.write_text("a new red dog\n")
    assert run("add", *where, "--file", more) == 0
    assert "201 sentences, 16 dimensions, fp16" in capsys.readouterr().out
    assert run("query", *where, "a new red dog", "--top_k", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["matches"][0]["row"] == 200
    assert run("query", *where, lines[3], "--top_k", "2") == 0
    first, *found = capsys.readouterr().out.splitlines()
    assert first == lines[3]
    assert re.fullmatch(rf"  1\.0000  +3  {lines[3]}", found[0])
    assert len(found) == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{lines[0]}\n{lines[9]}\n".encode())))
    assert run("query", *where, "--file", "-", "--json", "--top_k", 1, "--threshold", 0.9) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["query"] for r in records] == [lines[0], lines[9]]
    assert [r["matches"][0]["row"] for r in records] == [0, 9]
    assert set(records[0]["matches"][0]) == {"sentence", "score", "row", "false_alarm"}


def test_what_the_program_refuses(saved, text_file, tiny_bert, tmp_path, capsys):
    empty, full = tmp_path / "empty.txt", tmp_path / "full"
    empty.write_text("\n \n")
    full.mkdir()
    (full / "x").touch()
    new, made, other = ["--index", tmp_path / "idx"], ["--index", tmp_path / "made"], tmp_path / "other"
    saved_model(tiny_bert, other, "cls")
    assert run("build", "--model", saved, "--file", text_file, *made, "--dtype", "binary") == 0
    capsys.readouterr()
    build, query = ["build", "--model", saved, "--file"], ["query", "--model", saved]
    for arguments, message in (
        ([*build, empty, *new], "no usable sentence"),
        ([*build, tmp_path / "none.txt", *new], "--file: cannot read"),
        ([*build, text_file, "--index", full], "is not empty"),
        (["build", "--model", tiny_bert, "--file", text_file, *new], "not a sentence-transformers folder"),
        (["build", "--model", tmp_path / "none", "--file", text_file, *new], "--model: cannot load"),
        ([*build, text_file, *new, "--dtype", "int4"], "argument --dtype: invalid choice: 'int4'"),
        (["add", "--model", saved, "--file", text_file, *new], "holds no index"),
        (["add", "--model", saved, "--file", empty, *made], "no usable sentence"),
        (["add", "--model", other, "--file", text_file, *made], "was built with another model"),
        (["add", "--model", saved, "--file", text_file, *made, "--dtype", "int8"], "unrecognized arguments: --dtype"),
        (["query", "--model", other, *made, "text"], "was built with another model"),
        ([*query, *new, "text"], "holds no index"),
        ([*query, "--index", full, "text"], "holds no index"),
        ([*query, *new], "no query"),
        ([*query, *new, "a", " "], "a query is empty"),
        ([*query, *new, "text", "--top_k", "0"], "a number from 1 is needed"),
        ([*query, *new, "text", "--threshold", "nan"], "a finite number is needed, got 'nan'"),
        ([*query, *new, "text", "--top", "3"], "unrecognized arguments"),
        ([], "required: command"),
    ):
        assert run(*arguments) == 2
        error = capsys.readouterr().err.splitlines()
        assert message in error[-1]
        assert error[-1].startswith("dystress search: error: ")
        assert len([line for line in error if "error" in line]) == 1
    assert not (tmp_path / "idx").exists()
