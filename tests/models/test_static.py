"""Static models against loops, closed forms and sentence-transformers."""

import json
import unicodedata
from itertools import chain

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from model_cases import build_static
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

import dystress_text as dt
from dystress_text.data.corpus import TokenCroppedCorpus, load_corpus
from dystress_text.data.crops import Crops
from dystress_text.data.texts import plain_text
from dystress_text.models.embedder import Embedder, encode
from dystress_text.models.loading import load_sentence_transformer, save_model
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
from dystress_text.programs.train import main

TEXTS = [
    "The cat sits on the warm stone.",
    "Seven ships left the harbour before dawn.",
    "",
    "Ångström — naïve café!",
]
LINES = [f"{a} {b} {c} near the old {d} in spring" for a in ("cats", "dogs", "ships") for b in ("sleep", "run", "wait")
         for c in ("quietly", "often", "alone") for d in ("harbour", "bridge", "mill")]  # fmt: skip


def a_text(tmp_path, lines=LINES):
    file = tmp_path / "mine.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_new_vectors_are_random_times_idf(tmp_path):
    model = build_static(16)
    tokenizer = pretrained_tokenizer(tokenizer_of(model))
    corpus = load_corpus(plain_text(a_text(tmp_path)), tokenizer, 99, cache_dir=tmp_path)
    counts = corpus.document_frequencies(len(tokenizer))
    ids = [set(tokenizer(line)["input_ids"]) for line in LINES]
    by_hand = np.array(
        [sum(token in of_line for of_line in ids) for token in range(len(tokenizer))]
    )
    assert counts.tolist() == by_hand.tolist()
    with torch.no_grad():
        table_of(model)[tokenizer.unk_token_id] = UNKNOWN
    initialize_by_idf(model, counts, len(LINES), seed=3)
    idf = np.log(1.01 * len(LINES) / (0.01 * len(LINES) + by_hand))
    drawn = torch.randn(len(tokenizer), 16, generator=torch.Generator().manual_seed(3)).numpy()
    expected = 0.1 * drawn * (idf / idf.mean())[:, None]
    expected[tokenizer.unk_token_id] = UNKNOWN
    np.testing.assert_allclose(table_of(model).detach().numpy(), expected, rtol=1e-5, atol=1e-7)


def untrained(dim, normalize=False):
    """A new model as a run makes it."""
    model = new_static(embedded_tokenizer(), dim, normalize)
    set_unknown(model)
    initialize_by_idf(model, torch.ones(len(table_of(model))), 2, seed=0)
    return model


def test_unknown_vector_stays_next_to_zero():
    model = untrained(8)
    freeze_unknown(model)
    unknown = unknown_id(model)
    texts = ["a word and 🦆", "a word and", "🦆"]
    ids = [tokenizer_of(model).encode(text).ids for text in texts]
    assert unknown in ids[0]
    table = table_of(model)
    embedder = Embedder(model)
    optimizer = torch.optim.AdamW(embedder.parameters(), 0.1, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        lengths = torch.tensor([len(of_text) for of_text in ids])
        embedder(torch.tensor([*chain(*ids)]), lengths).square().sum().backward()
        optimizer.step()
    assert table[unknown].abs().max() <= UNKNOWN
    assert table.grad.any()
    assert table.grad.isfinite().all()
    with_it, without, alone = encode(model, texts)
    torch.testing.assert_close(
        with_it / with_it.norm(), without / without.norm(), rtol=0, atol=1e-3
    )
    assert alone.norm() < 1e-2 * without.norm()


@pytest.mark.parametrize("normalize", [False, True])
def test_saved_model_equals_sentence_transformers(tmp_path, normalize):
    model = build_static(24, normalize)
    save_model(model, tmp_path / "m")
    saved = SentenceTransformer(str(tmp_path / "m"))
    kinds = [StaticEmbedding, Normalize] if normalize else [StaticEmbedding]
    assert [type(module) for module in saved] == kinds
    settings = json.loads((tmp_path / "m" / "config_sentence_transformers.json").read_text())
    assert settings.get("normalize", False) == normalize  # which model2vec reads
    ours = encode(model, TEXTS)
    np.testing.assert_allclose(saved.encode(TEXTS), ours.numpy(), atol=1e-6)
    assert torch.equal(encode(load_sentence_transformer(str(tmp_path / "m")), TEXTS), ours)
    if not normalize:
        ids = embedded_tokenizer().encode(TEXTS[1], add_special_tokens=False).ids
        torch.testing.assert_close(ours[1], table_of(model)[ids].mean(0).detach())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("lengths", [[5, 0, 1, 7], [1, 1, 1], [0], [70_000]])
@pytest.mark.parametrize("one_id", [False, True])
def test_mean_of_rows_equals_embedding_bag(dtype, tolerance, lengths, one_id):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(50, 8, dtype=dtype, generator=generator)
    ids = torch.randint(1 if one_id else 50, (sum(lengths),), generator=generator)
    counts = torch.tensor(lengths)
    ours, expected = (table.clone().requires_grad_() for _ in range(2))
    starts = counts.cumsum(0) - counts
    means = F.embedding_bag(ids, expected, starts, mode="mean")
    upstream = torch.randn(means.shape, dtype=dtype, generator=generator)
    means.backward(upstream)
    of_ours = mean_of_rows(ours, ids, counts)
    of_ours.backward(upstream)
    torch.testing.assert_close(of_ours, means, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours.grad, expected.grad, rtol=10 * tolerance, atol=tolerance)


def test_own_text_learns_topics(tmp_path):
    rng, known = np.random.default_rng(0), embedded_tokenizer().get_vocab()
    words = sorted(word for word in known if word.isalpha() and len(word) > 5)
    topics = rng.choice(words, (40, 6), replace=False)
    lines = [" ".join(rng.choice(topic, 12)) for topic in topics for _ in range(8)]
    run = dt.train(
        "own-text", train_file=a_text(tmp_path, lines), output_dir=tmp_path / "out", dim=64
    )
    model = run.model
    assert isinstance(model[0], StaticEmbedding)
    one, other = (
        model.encode([" ".join(part) for part in half]) for half in (topics[:, :3], topics[:, 3:])
    )
    cosine = model.similarity(
        one, other
    ).numpy()  # (40, 40); the two parts of a topic share no word
    assert (cosine.argmax(1) == np.arange(40)).mean() > 0.6  # untrained 0.02
    settings = json.loads((tmp_path / "out" / "run.json").read_text())["settings"]
    assert (settings["loss"], settings["train_batch_size"]) == ("dcl(0.1)", 256)


def test_learned_vocabulary_covers_every_character():
    text = "แมวนอนหลับบนหินอุ่น Η γάτα κοιμάται 猫は古い橋"  # noqa: RUF001
    lines = [text[i:] + text[:i] for i in range(len(text))] * 3
    tokenizer = learn_tokenizer(lines)
    assert tokenizer.to_str() == learn_tokenizer(lines).to_str()
    for other in (text, "Ѫ 𐍈 ñ 龘 ក្រុម 🙂 x²"):  # characters that the text does not have
        plain = unicodedata.normalize("NFKC", other).lower().split()
        assert tokenizer.decode(tokenizer.encode(other).ids) == "".join(plain)
    assert len(tokenizer.encode(text).ids) < len(text)


def test_crops_are_spans_of_tokens(tmp_path):
    tokenizer = pretrained_tokenizer(embedded_tokenizer())
    read = load_corpus(plain_text(a_text(tmp_path)), tokenizer, 99, cache_dir=tmp_path)
    corpus = TokenCroppedCorpus(**vars(read), crops=Crops(seed=1))
    batch = corpus.batch(np.arange(40), 5)
    crops = batch["token_ids"].split(batch["lengths"].tolist())
    assert len(crops) == 80
    for sample, crop in zip([*range(40)] * 2, crops, strict=True):
        whole = tokenizer(LINES[sample])["input_ids"]
        n = len(crop)
        assert max(3, round(0.2 * len(whole))) <= n <= round(0.6 * len(whole)) + 1
        assert crop.tolist() in [whole[i : i + n] for i in range(len(whole) - n + 1)]
    alone = corpus.batch(np.arange(7, 8), 5)  # seed, step and sample decide
    assert torch.equal(alone["token_ids"][alone["lengths"][0] :], crops[47])


@pytest.mark.parametrize(
    "option", ["--views=dropout", "--do_mlm", "--pooler_type=cls", "--lora=8", "--dropout=0.2"]
)
def test_options_of_transformers_are_rejected(tmp_path, capsys, option):
    line = ["--preset=own-text", f"--train_file={a_text(tmp_path)}", f"--output_dir={tmp_path}/out"]
    assert main([*line, option]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert option.partition("=")[0] in error
    assert not (tmp_path / "out").exists()
