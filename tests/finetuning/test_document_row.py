"""The document row of new tables, and titles as views, against explicit loops."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from model_cases import text_reader
from processes import spawn
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.base.evaluation import SentenceEvaluator
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

import dystress_text as dt
from dystress_text.evaluation.text_encoder import TextEncoder
from dystress_text.finetuning.corpus import TokenCroppedCorpus, load_corpus
from dystress_text.finetuning.crops import Crops
from dystress_text.finetuning.settings import TextSettings
from dystress_text.finetuning.texts import training_text
from dystress_text.models.loading import load_sentence_transformer, save_model
from dystress_text.models.static import embedded_tokenizer, new_static, table_of

PIVOT = 0.25
WORDS = sorted(word for word in embedded_tokenizer().get_vocab() if word.isalpha())[500:900]
SMALL = {"dim": 16, "max_steps": 6, "train_batch_size": 16, "weight_decay": 0.01}


rng = np.random.default_rng(0)
ROWS = [
    {
        "_id": str(number),
        "title": " ".join(rng.choice(WORDS, 4)),
        "text": " ".join(rng.choice(WORDS, 5 + number)) + " \U0001f986 [DOC]",
    }
    for number in range(60)
]
DOCUMENTS = [f"{row['title']} {row['text']}" for row in ROWS]


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "corpus.jsonl", ROWS)


@pytest.fixture
def train(file, tmp_path):
    """Return a function that trains on the rows; it returns the run."""

    def with_options(**more):
        options = {"train_file": file, "output_dir": tmp_path / "out", **SMALL, **more}
        return dt.train("own-text", **options)

    return with_options


def sum_of_rows(model, text):
    """Return the sum of a text's rows, without the document row and its number."""
    table = table_of(model).detach()[:, 1:]
    return table[model[0].tokenizer.encode(text, add_special_tokens=False).ids].sum(0)


def squared_document_row(model):
    squares = [sum_of_rows(model, text).square().sum().item() for text in DOCUMENTS]
    return PIVOT * np.mean(squares)


def check_row(model):
    table = table_of(model).detach()
    (found,) = table[:, 0].nonzero().tolist()
    assert table[found].squeeze().count_nonzero() == 1
    assert table[found].square().sum().item() == pytest.approx(squared_document_row(model), 1e-4)


@pytest.mark.parametrize("vocabulary", ["embedded", "text"])
def test_saved_models_embed_documents_by_the_formula(train, tmp_path, vocabulary):
    train(vocabulary=vocabulary, gradient_accumulation_steps=2)
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert "encode_document" in (tmp_path / "out" / "report.html").read_text()
    check_row(model)
    squared = squared_document_row(model)
    sums = torch.stack([sum_of_rows(model, text) for text in DOCUMENTS])
    expected = sums / (sums.square().sum(1, keepdim=True) + squared).sqrt()
    found = model.encode_document(DOCUMENTS, convert_to_tensor=True)
    torch.testing.assert_close(found[:, 1:], expected, rtol=0, atol=1e-5)
    plain = model.encode(DOCUMENTS, convert_to_tensor=True)
    assert not plain[:, 0].any()
    torch.testing.assert_close(plain[:, 1:], F.normalize(sums), rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.encode_query(DOCUMENTS), plain, atol=1e-6)
    assert model.encode_document("").tolist() == [1, *[0] * 15]
    model.truncate_dim = 8
    np.testing.assert_allclose(model.encode_document(DOCUMENTS), found[:, :8], atol=1e-6)
    halved = model.half().encode_document(DOCUMENTS)
    np.testing.assert_allclose(halved, found[:, :8], atol=5e-3)


def test_the_name_of_the_document_token_in_a_text_is_text():
    model = new_static(embedded_tokenizer(), 8, normalize=True)
    torch.nn.init.normal_(table_of(model)[:-1])
    with torch.no_grad():
        table_of(model)[:, 0] = 0
        table_of(model)[-1, 0] = 5
    texts = ["[DOC] word", "word [DOC][DOC]", "[DOC]", "[doc] \u2063 word", " [DOC] [DOC] word"]
    assert not model.encode(texts)[:, 0].any()
    (first,) = set(model.encode_document(texts[:1])[:, 0].tolist())
    assert 0 < first < 1


def test_all_ways_to_search_find_the_same(train, tmp_path):
    train()
    model = load_sentence_transformer(str(tmp_path / "out"))
    queries = [row["title"].split()[0] for row in ROWS]
    ours = list(TextEncoder(model).search(queries, DOCUMENTS, 10))
    theirs = util.semantic_search(model.encode_query(queries), model.encode_document(DOCUMENTS))
    for one, other in zip(ours, theirs, strict=True):
        scores = [score for _, score in one]
        assert scores == pytest.approx([hit["score"] for hit in other], abs=1e-5)
    plain = util.semantic_search(model.encode(queries), model.encode(DOCUMENTS))
    order = [[index for index, _ in hits] for hits in ours]
    assert order != [[hit["corpus_id"] for hit in hits] for hits in plain]


def train_in_processes(file, out):
    dt.train("own-text", train_file=file, output_dir=out, **SMALL)


@pytest.mark.slow(20)
def test_several_processes_save_the_row(file, tmp_path):
    spawn(2, train_in_processes, file, tmp_path / "two")
    model = load_sentence_transformer(str(tmp_path / "two"))
    check_row(model)


class RowCheck(SentenceEvaluator):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __call__(self, model, *args, **kwargs):
        self.calls += 1
        if self.calls > 1:  # the first call only asks for the figures' names
            check_row(model)
        return float(-self.calls)


def test_the_row_is_right_in_every_evaluation(train, tmp_path):
    check = RowCheck()
    train(evaluator=check, eval_steps=2)
    assert check.calls > 3
    check_row(load_sentence_transformer(str(tmp_path / "out")))  # the first one is the best


def test_a_base_without_the_row_trains_without_it(train, tmp_path, capsys):
    embedding = StaticEmbedding(embedded_tokenizer(), embedding_dim=16)
    save_model(SentenceTransformer(modules=[embedding, Normalize()]), tmp_path / "base")
    train(model_name_or_path=tmp_path / "base", dim=None)
    model = load_sentence_transformer(str(tmp_path / "out"))
    assert len(table_of(model)) == embedding.embedding.num_embeddings
    np.testing.assert_array_equal(model.encode_document(DOCUMENTS), model.encode(DOCUMENTS))
    assert "no document row" in capsys.readouterr().out


def read(path, cache, **options):
    settings = TextSettings(train_file=[str(path)], views="crop", **options)
    text = training_text(settings)
    reader = text_reader(99, model=new_static(embedded_tokenizer(), 4, normalize=True))
    corpus = load_corpus(text, reader, cache_dir=cache)
    return TokenCroppedCorpus(**vars(corpus), crops=Crops(seed=1, most=99))


def views(corpus, step, first=0):
    samples = np.arange(first, len(corpus))
    batch = corpus.batch(samples, step)
    crops = [crop.tolist() for crop in batch["token_ids"].split(batch["lengths"].tolist())]
    return list(zip(crops[: len(samples)], crops[len(samples) :], strict=True))


def test_half_of_the_views_are_title_and_body(tmp_path):
    rows = [dict(row) for row in ROWS]
    rows[0]["title"] = ""
    rows[1]["title"] = rows[1]["text"]
    rows[2]["title"] = "word"
    rows[3]["text"] = " ".join(WORDS[:3])
    rows[4]["title"] = None
    rows[5]["text"] = ""
    rows[6]["text"] = "several\rlines\r\nof text"
    never = {0, 1, 2, 3, 4, 5}
    titled = read(write(tmp_path / "titled.jsonl", rows), tmp_path)
    joined = [" ".join(filter(None, (row["title"], row["text"]))) for row in rows]
    lines = [{"text": " ".join(text.split())} for text in joined]
    crops = read(write(tmp_path / "joined.jsonl", lines), tmp_path)
    np.testing.assert_array_equal(titled.content, crops.content)
    encode = embedded_tokenizer().encode
    times = np.zeros(len(rows))
    for step in range(100):
        pairs = zip(rows, views(titled, step), views(crops, step), strict=True)
        for number, (row, found, cropped) in enumerate(pairs):
            if found != cropped:
                parts = row["title"], row["text"]
                assert found == tuple(encode(part, add_special_tokens=False).ids for part in parts)
                times[number] += 1
    assert set(np.flatnonzero(times == 0)) == never
    assert times[6:].mean() == pytest.approx(50, abs=3)
    assert views(crops, 3, 50) == views(crops, 3)[50:]  # whatever else is in the batch


@pytest.mark.parametrize("columns", [["text"], ["_id", "title", "text"]])
def test_one_column_and_three_have_no_title(file, tmp_path, columns):
    corpus = read(file, tmp_path, text_columns=columns)
    assert corpus.titles is None
    first = embedded_tokenizer().encode(" ".join(ROWS[0][name] for name in columns))
    assert corpus.content[: corpus.offsets[1]].tolist() == first.ids[1:-1]


@pytest.mark.parametrize("part", ["title", "text"])
def test_a_title_in_no_document_or_alone(train, tmp_path, part):
    rows = [{"title": "", "text": "", part: row[part]} for row in ROWS]
    run = train(train_file=write(tmp_path / "rows.jsonl", rows))
    assert run.record.corpus["sentences"] == len(ROWS)
