"""Static models against loops, closed forms and sentence-transformers."""

import json
import unicodedata
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from model_cases import build_static, close, text_reader
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers

import dystress_text as dt
from dystress_text.finetuning.corpus import load_corpus
from dystress_text.finetuning.texts import plain_text
from dystress_text.models.encoding import encode, tokenize
from dystress_text.models.loading import save_model
from dystress_text.models.model_with_heads import ModelWithHeads
from dystress_text.models.static import (
    UNKNOWN,
    embedded_tokenizer,
    freeze_unknown,
    initialize_by_idf,
    learn_tokenizer,
    mean_of_rows,
    new_static,
    pretrained_tokenizer,
    set_unknown,
    table_of,
    tokenizer_of,
    unknown_id,
)

TEXTS = [
    "The cat sits on the warm stone.",
    "Seven ships left the harbour before dawn.",
    "",
    "Ångström — naïve café!",
]
WORDS = [("cats", "dogs", "ships"), ("sleep", "run", "wait"), ("quietly", "often", "alone")]
LINES = [f"{' '.join(words)} near the old harbour in spring" for words in product(*WORDS)]


def new_model(tokenizer, dim):
    """Return a new static model as training starts from it."""
    model = new_static(tokenizer, dim, normalize=False)
    initialize_by_idf(model, torch.ones(len(table_of(model))), 2, seed=0)
    freeze_unknown(model)
    return model


def train_on(model, text):
    model[0](model.preprocess([text]))["sentence_embedding"].sum().backward()
    return table_of(model).grad


def test_new_vectors_are_random_times_idf(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("\n".join(LINES))
    model = build_static(16)
    unknown = unknown_id(model)
    table = table_of(model)
    with torch.no_grad():
        table[unknown] = UNKNOWN
    corpus = load_corpus(plain_text(file), text_reader(99, model=model), cache_dir=tmp_path)
    by_hand = np.zeros(len(table))
    for line in LINES:
        by_hand[list(set(tokenizer_of(model).encode(line).ids))] += 1
    counts = corpus.document_frequencies(len(table))
    assert counts.tolist() == by_hand.tolist()
    initialize_by_idf(model, counts, len(LINES), seed=3)
    idf = np.log(1.01 * len(LINES) / (0.01 * len(LINES) + by_hand))
    drawn = torch.randn(table.shape, generator=torch.Generator().manual_seed(3)).numpy()
    expected = 0.1 * drawn * (idf / idf.mean())[:, None]
    expected[unknown] = UNKNOWN
    close(table.detach(), expected)


def test_unknown_vector_stays_next_to_zero():
    model = new_model(embedded_tokenizer(), 8)
    table = table_of(model)
    texts = ["a word and 🦆", "a word and", "🦆"]
    ids, lengths = tokenize(model, texts)
    assert unknown_id(model) in ids
    trained = ModelWithHeads(model)
    optimizer = torch.optim.AdamW(trained.parameters(), 0.1, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        trained(ids, torch.tensor(lengths)).square().sum().backward()
        optimizer.step()
    assert table[unknown_id(model)].abs().max() <= UNKNOWN
    assert table.grad.any()
    with_it, without, alone = encode(model, texts)
    close(F.normalize(with_it, dim=0), F.normalize(without, dim=0), 1e-3)
    assert alone.norm() < 1e-2 * without.norm()


def test_unknown_token_of_unigram_is_not_trained():
    tokenizer = Tokenizer(models.Unigram([("cat", -1.0), ("[UNK]", 0.0), ("dog", -1.0)], unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert pretrained_tokenizer(tokenizer).unk_token == "[UNK]"
    model = new_model(tokenizer, 4)
    assert unknown_id(model) == 1
    assert train_on(model, "cat 猫 dog")[:3].any(1).tolist() == [True, False, True]
    close(table_of(model).detach()[1], [0, *[UNKNOWN] * 3], 1e-9)


def test_an_unknown_vector_that_was_trained_goes_on():
    model = build_static(8, small=True)
    unknown = unknown_id(model)
    before = table_of(model)[unknown].detach().clone()
    set_unknown(model)
    freeze_unknown(model)
    assert train_on(model, "\N{DUCK}")[unknown].all()
    assert table_of(model)[unknown].equal(before)


@pytest.mark.parametrize("normalize", [False, True])
def test_saved_model_equals_sentence_transformers(tmp_path, normalize):
    model = build_static(24, normalize)
    save_model(model, tmp_path)
    saved = SentenceTransformer(str(tmp_path), device="cpu")
    close(saved.encode(TEXTS), encode(model, TEXTS))
    settings = json.loads((tmp_path / "config_sentence_transformers.json").read_text())
    assert settings.get("normalize", False) == normalize  # which model2vec reads


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("lengths", [[5, 0, 1, 7], [0], [70_000]])
def test_mean_of_rows_equals_embedding_bag(dtype, tolerance, lengths):
    torch.manual_seed(0)
    table = torch.randn(50, 8, dtype=dtype, requires_grad=True)
    ids = torch.randint(50, (sum(lengths),))
    counts = torch.tensor(lengths)
    starts = counts.cumsum(0) - counts
    upstream = torch.randn(len(lengths), 8, dtype=dtype)
    results = []
    for means in (
        mean_of_rows(table, ids, counts),
        F.embedding_bag(ids, table, starts, mode="mean"),
    ):
        results.append((means, torch.autograd.grad(means, table, upstream)))
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance / 10)


def test_own_text_learns_topics(tmp_path):
    rng = np.random.default_rng(0)
    known = embedded_tokenizer().get_vocab()
    words = sorted(word for word in known if word.isalpha() and len(word) > 5)
    topics = rng.choice(words, (40, 6), replace=False)
    lines = [" ".join(rng.choice(topic, 12)) for topic in np.repeat(topics, 8, axis=0)]
    file = tmp_path / "topics.txt"
    file.write_text("\n".join(lines))
    model = dt.train("own-text", train_file=file, output_dir=tmp_path / "out", dim=64).model
    one = model.encode([" ".join(topic[:3]) for topic in topics])
    other = model.encode([" ".join(topic[3:]) for topic in topics])  # the topic's other words
    nearest = model.similarity(one, other).argmax(1)
    assert (nearest == torch.arange(40)).double().mean() > 0.6  # untrained 0.02


def test_learned_vocabulary_covers_every_character():
    text = "แมวนอนหลับบนหินอุ่น Η γάτα κοιμάται 猫は古い橋"  # noqa: RUF001
    lines = [text[i:] + text[:i] for i in range(len(text))] * 3
    tokenizer = learn_tokenizer(lines)
    assert tokenizer.to_str() == learn_tokenizer(lines).to_str()
    for other in (text, "Ѫ 𐍈 ñ 龘 ក្រុម 🙂 x²"):  # characters that the text does not have
        plain = unicodedata.normalize("NFKC", other).lower().split()
        assert tokenizer.decode(tokenizer.encode(other).ids) == "".join(plain)
    assert len(tokenizer.encode(text).ids) < len(text)
    assert len(learn_tokenizer(["covid19"] * 9).encode("covid19").ids) == 1
