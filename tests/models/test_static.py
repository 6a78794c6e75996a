"""Static models against loops, closed forms and sentence-transformers."""

import json
import unicodedata
from itertools import chain, product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from model_cases import build_static, text_reader
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

import dystress_text as dt
from dystress_text.finetuning.corpus import load_corpus
from dystress_text.finetuning.texts import plain_text
from dystress_text.models.encoding import encode
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


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return file


def test_new_vectors_are_random_times_idf(text, tmp_path):
    model = build_static(16)
    tokenizer = pretrained_tokenizer(tokenizer_of(model))
    corpus = load_corpus(plain_text(text), text_reader(99, model=model), cache_dir=tmp_path)
    by_hand = np.zeros(len(tokenizer))
    for line in LINES:
        by_hand[sorted(set(tokenizer(line)["input_ids"]))] += 1
    counts = corpus.document_frequencies(len(tokenizer))
    assert counts.tolist() == by_hand.tolist()
    unknown = unknown_id(model)
    with torch.no_grad():
        table_of(model)[unknown] = UNKNOWN
    initialize_by_idf(model, counts, len(LINES), seed=3)
    idf = np.log(1.01 * len(LINES) / (0.01 * len(LINES) + by_hand))
    drawn = torch.randn(len(tokenizer), 16, generator=torch.Generator().manual_seed(3)).numpy()
    expected = 0.1 * drawn * (idf / idf.mean())[:, None]
    expected[unknown] = UNKNOWN
    np.testing.assert_allclose(table_of(model).detach().numpy(), expected, rtol=1e-5, atol=1e-7)


def test_unknown_vector_stays_next_to_zero():
    model = new_static(embedded_tokenizer(), 8, normalize=False)
    table = table_of(model)
    initialize_by_idf(model, torch.ones(len(table)), 2, seed=0)
    freeze_unknown(model)
    unknown = unknown_id(model)
    texts = ["a word and 🦆", "a word and", "🦆"]
    ids = [tokenizer_of(model).encode(text).ids for text in texts]
    assert unknown in ids[0]
    lengths = torch.tensor([len(of_text) for of_text in ids])
    embedder = ModelWithHeads(model)
    optimizer = torch.optim.AdamW(embedder.parameters(), 0.1, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        embedder(torch.tensor([*chain(*ids)]), lengths).square().sum().backward()
        optimizer.step()
    assert table[unknown].abs().max() <= UNKNOWN
    assert table.grad.any()
    assert table.grad.isfinite().all()
    with_it, without, alone = encode(model, texts)
    directions = F.normalize(torch.stack([with_it, without]), dim=1)
    torch.testing.assert_close(directions[0], directions[1], rtol=0, atol=1e-3)
    assert alone.norm() < 1e-2 * without.norm()


def test_unknown_token_of_unigram_is_not_trained():
    tokenizer = Tokenizer(models.Unigram([("cat", -1.0), ("[UNK]", 0.0), ("dog", -1.0)], unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = new_static(tokenizer, 4, normalize=False)
    assert unknown_id(model) == 1
    assert pretrained_tokenizer(tokenizer).unk_token == "[UNK]"
    initialize_by_idf(model, torch.ones(4), 2, seed=0)
    freeze_unknown(model)
    model[0](model.preprocess(["cat 猫 dog"]))["sentence_embedding"].sum().backward()
    gradient = table_of(model).grad
    assert gradient[[0, 2]].ne(0).all()
    assert not gradient[1].any()
    assert table_of(model)[1].tolist() == pytest.approx([0, *[UNKNOWN] * 3])


def test_an_unknown_vector_that_was_trained_goes_on():
    model = build_static(8, small=True)
    unknown = unknown_id(model)
    before = table_of(model)[unknown].detach().clone()
    set_unknown(model)
    freeze_unknown(model)
    model[0](model.preprocess(["\N{DUCK}"]))["sentence_embedding"].sum().backward()
    assert table_of(model)[unknown].equal(before)
    assert table_of(model).grad[unknown].all()


@pytest.mark.parametrize("normalize", [False, True])
def test_saved_model_equals_sentence_transformers(tmp_path, normalize):
    model = build_static(24, normalize)
    save_model(model, tmp_path)
    saved = SentenceTransformer(str(tmp_path), device="cpu")
    assert isinstance(saved[0], StaticEmbedding)
    assert isinstance(saved[-1], Normalize) == normalize
    settings = json.loads((tmp_path / "config_sentence_transformers.json").read_text())
    assert settings.get("normalize", False) == normalize  # which model2vec reads
    np.testing.assert_allclose(saved.encode(TEXTS), encode(model, TEXTS).numpy(), atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("lengths", [[5, 0, 1, 7], [0], [70_000]])
def test_mean_of_rows_equals_embedding_bag(dtype, tolerance, lengths):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(50, 8, dtype=dtype, generator=generator).requires_grad_()
    ids = torch.randint(50, (sum(lengths),), generator=generator)
    counts = torch.tensor(lengths)
    upstream = torch.randn(len(lengths), 8, dtype=dtype, generator=generator)
    ours = mean_of_rows(table, ids, counts)
    expected = F.embedding_bag(ids, table, counts.cumsum(0) - counts, mode="mean")
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
    (gradient,) = torch.autograd.grad(ours, table, upstream)
    (by_torch,) = torch.autograd.grad(expected, table, upstream)
    torch.testing.assert_close(gradient, by_torch, rtol=10 * tolerance, atol=tolerance)


def test_own_text_learns_topics(tmp_path):
    rng = np.random.default_rng(0)
    known = embedded_tokenizer().get_vocab()
    words = sorted(word for word in known if word.isalpha() and len(word) > 5)
    topics = rng.choice(words, (40, 6), replace=False)
    lines = [" ".join(rng.choice(topic, 12)) for topic in np.repeat(topics, 8, axis=0)]
    file = tmp_path / "topics.txt"
    file.write_text("\n".join(lines))
    run = dt.train("own-text", train_file=file, output_dir=tmp_path / "out", dim=64)
    model = run.model
    assert isinstance(model[0], StaticEmbedding)
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
