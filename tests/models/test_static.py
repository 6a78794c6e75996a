"""Tables of word vectors: how they start, that they are sentence-transformers' own, how they train,
what is refused.
"""

import json
import unicodedata
from itertools import chain

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from model_cases import build_static
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from tokenizers import Tokenizer, models

import dystress_text as dt
from dystress_text.config.settings import TextSettings
from dystress_text.data.corpus import TokenCroppedCorpus, load_corpus
from dystress_text.data.crops import Crops
from dystress_text.data.texts import plain_text
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.io.paths import EMBEDDED
from dystress_text.models.embedder import Embedder, encode
from dystress_text.models.loading import load_sentence_transformer, save_model
from dystress_text.models.static import (
    UNKNOWN,
    embedded_tokenizer,
    freeze_unknown,
    initialize_by_idf,
    mean_of_rows,
    new_static,
    pretrained_tokenizer,
    save_static,
    set_unknown,
    table_of,
    tokenizer_of,
    unknown_id,
)
from dystress_text.programs.export import main as export
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


def test_a_new_table_is_random_times_idf(tmp_path):
    model = build_static(16)
    tokenizer = pretrained_tokenizer(tokenizer_of(model))
    corpus = load_corpus(plain_text(a_text(tmp_path), False), tokenizer, 99, cache_dir=tmp_path)
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


def test_what_is_not_known_has_no_meaning_after_training_either(tmp_path):
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
    embedder.save(tmp_path / "m")
    again = load_sentence_transformer(str(tmp_path / "m"))
    assert unknown_id(again) == unknown
    freeze_unknown(again)  # and it stays so when training goes on
    again[0]({"input_ids": torch.tensor(ids[2]), "offsets": torch.tensor([0])})[
        "sentence_embedding"
    ].sum().backward()
    assert not table_of(again).grad[unknown].any()


def test_a_unigram_tokenizer_has_an_unknown_token_too():
    """As those of multilingual models, whose words a hybrid model reads."""
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -1.0)], unk_id=0))
    model = new_static(tokenizer, 8, normalize=True)
    initialize_by_idf(model, torch.ones(3), 2, seed=0)
    assert unknown_id(model) == 0
    assert (table_of(model)[0] == UNKNOWN).all()
    assert pretrained_tokenizer(tokenizer).unk_token == "<unk>"
    freeze_unknown(model)
    Embedder(model)(torch.tensor([0, 1]), torch.tensor([2])).square().sum().backward()
    assert not table_of(model).grad[0].any()
    assert table_of(model).grad[1].any()
    bytes_alone = Tokenizer(models.Unigram([("a", -1.0), ("b", -1.0)]))
    assert unknown_id(new_static(bytes_alone, 8, normalize=True)) is None


def test_an_unknown_token_that_has_a_meaning_is_trained():
    model = build_static(8)
    freeze_unknown(model)
    ids = torch.tensor([unknown_id(model)])
    Embedder(model)(ids, torch.tensor([1])).sum().backward()
    assert table_of(model).grad[unknown_id(model)].any()


@pytest.mark.parametrize("normalize", [False, True])
def test_a_text_of_unknown_words_does_not_stop_further_training(tmp_path, normalize):
    save_static(untrained(64, normalize), tmp_path / "m")
    kept = json.loads((tmp_path / "m" / "config_sentence_transformers.json").read_text())
    assert kept.get("normalize", False) == normalize  # for model2vec
    model = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    before = model.encode(TEXTS[:2])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    columns = [["\N{DUCK}", *TEXTS[:2]], ["the harbour", "a cat", "a ship"]]
    loss = MultipleNegativesRankingLoss(model)([model.preprocess(texts) for texts in columns], None)
    loss.backward()
    assert torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) < 1e5
    optimizer.step()
    assert np.abs(model.encode(TEXTS[:2]) - before).max() > 1e-3
    assert np.isfinite(model.half().encode(["\N{DUCK}", *TEXTS[:2]])).all()


@pytest.mark.parametrize("normalize", [False, True])
def test_saved_it_is_sentence_transformers_own_and_it_is_read_again(tmp_path, normalize):
    model = build_static(24, normalize)
    save_model(model, tmp_path / "m")
    saved = SentenceTransformer(str(tmp_path / "m"))
    kinds = [StaticEmbedding, Normalize] if normalize else [StaticEmbedding]
    assert [type(module) for module in saved] == kinds
    ours = encode(model, TEXTS)
    np.testing.assert_allclose(saved.encode(TEXTS), ours.numpy(), atol=1e-6)
    assert torch.equal(encode(load_sentence_transformer(str(tmp_path / "m")), TEXTS), ours)
    if not normalize:
        ids = embedded_tokenizer().encode(TEXTS[1], add_special_tokens=False).ids
        torch.testing.assert_close(ours[1], table_of(model)[ids].mean(0).detach())


def test_the_packed_pass_and_its_gradient_are_those_of_a_loop():
    model = build_static(8)
    lengths = torch.tensor([3, 1, 4])
    ids = torch.tensor([5, 9, 5, 7, 1, 1, 2, 9])
    table = table_of(model)
    rows = torch.stack([table[part].mean(0) for part in ids.split(lengths.tolist())])
    found = Embedder(model)(ids, lengths)
    torch.testing.assert_close(found, rows)
    (ours,), (loops,) = (torch.autograd.grad(x.square().sum(), table) for x in (found, rows))
    torch.testing.assert_close(ours, loops)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("lengths", [[5, 0, 1, 7], [1, 1, 1], [0], [70_000]])
@pytest.mark.parametrize("one_id", [False, True])
def test_mean_of_rows_and_its_gradient_equal_embedding_bag(dtype, tolerance, lengths, one_id):
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


def test_crops_are_spans_of_tokens_that_seed_step_and_sample_decide(tmp_path):
    tokenizer = pretrained_tokenizer(embedded_tokenizer())
    read = load_corpus(plain_text(a_text(tmp_path), False), tokenizer, 99, cache_dir=tmp_path)
    corpus = TokenCroppedCorpus(**vars(read), crops=Crops(seed=1))
    samples = np.arange(40)
    for step in range(20):
        batch = corpus.batch(samples, step)
        crops = batch["token_ids"].split(batch["lengths"].tolist())
        assert (len(crops), batch["longest"]) == (80, max(map(len, crops)))
        for sample, crop in zip([*samples, *samples], crops, strict=True):
            whole = tokenizer(LINES[sample])["input_ids"]
            n = len(crop)
            assert max(3, round(0.2 * len(whole))) <= n <= round(0.6 * len(whole)) + 1
            assert crop.tolist() in [whole[i : i + n] for i in range(len(whole) - n + 1)]
    one, both = (batch["token_ids"].split(batch["lengths"].tolist())
                 for batch in (corpus.batch(samples[7:8], 5), corpus.batch(samples, 5)))  # fmt: skip
    assert torch.equal(one[1], both[47])


def test_own_text_learns_what_belongs_together(tmp_path):
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
    ).numpy()  # (40, 40), of halves of topics that share no word
    assert (cosine.argmax(1) == np.arange(40)).mean() > 0.6  # untrained 0.02
    settings = json.loads((tmp_path / "out" / "run.json").read_text())["settings"]
    assert (settings["loss"], settings["train_batch_size"]) == ("dcl(0.1)", 256)


def test_few_samples_make_a_smaller_batch_and_a_run_is_resumed_with_it(tmp_path, capsys):
    line = [
        "--preset=own-text",
        f"--train_file={a_text(tmp_path)}",
        f"--output_dir={tmp_path / 'out'}",
        "--dim=8",
    ]
    assert main(line) == 0
    assert "batches of 56, as there are no more samples" in capsys.readouterr().out
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert main([*line, "--resume_from_checkpoint"]) == 0
    assert "finished; nothing was changed" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert (
        main(
            [
                *line[:3],
                "--model_name_or_path",
                str(tmp_path / "out"),
                "--output_dir",
                str(tmp_path / "2"),
            ]
        )
        == 0
    )
    assert main([*line, "--train_batch_size=256", "--overwrite_output_dir"]) == 2


SCRIPTS = {
    "Thai": "แมวนอนหลับบนหินอุ่นใกล้สะพานเก่า",
    "Japanese": "猫は古い橋の近くの暖かい石の上で眠る",
    "Greek": "Η γάτα κοιμάται",  # noqa: RUF001
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_vocabulary_of_the_text_knows_every_character(tmp_path, script):
    text = SCRIPTS[script]
    lines = [text[i:] + text[:i] for i in range(len(text))] * 3
    file = a_text(tmp_path, lines)
    line = [
        "--preset=own-text",
        f"--train_file={file}",
        "--vocabulary=text",
        "--dim=8",
        "--output_dir",
    ]
    assert main([*line, str(tmp_path / "out")]) == 0
    assert main([*line, str(tmp_path / "again")]) == 0
    first, again = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again")
    )
    assert first == again
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    for other in (text, "Ѫ 𐍈 ñ 龘 ក្រុម 🙂 x²"):  # characters that the text does not have
        plain = unicodedata.normalize("NFKC", other).lower().split()
        assert tokenizer.decode(tokenizer.encode(other).ids) == "".join(plain)
    assert len(tokenizer.encode(text).ids) < len(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--views=dropout"], "--views: a static encoder has no dropout"),
     (["--do_mlm"], "--do_mlm: a static encoder such as 'static' has none"),
     (["--pooler_type=cls"], "--pooler_type: cls was given"),
     (["--model_name_or_path=bert-mini-wiki", "--dim=64"], "--dim: is of "),
     (["--lora=8"], "--lora: "), (["--mlp_head=yes"], "--mlp_head: "), (["--dropout=0.2"], "--dropout: "),
     (["--model_name_or_path=bert-mini-wiki", "--vocabulary=text"], "--vocabulary: is of ")],
)  # fmt: skip
def test_what_a_table_has_not_is_one_line(tmp_path, capsys, options, said):
    line = [
        "--preset=own-text",
        f"--train_file={a_text(tmp_path)}",
        f"--output_dir={tmp_path / 'out'}",
    ]
    assert main([*line, *options]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"error: {said}" in error
    assert not (tmp_path / "out").exists()


def test_a_saved_table_keeps_its_pieces(tmp_path, capsys):
    save_model(build_static(), tmp_path / "m")
    line = [
        "--preset=own-text",
        f"--train_file={a_text(tmp_path)}",
        f"--output_dir={tmp_path / 'out'}",
    ]
    assert main([*line, f"--model_name_or_path={tmp_path / 'm'}", "--vocabulary=text"]) == 2
    assert "--vocabulary: is of --model_name_or_path static" in capsys.readouterr().err
    assert main([*line, f"--model_name_or_path={tmp_path / 'm'}", "--dim=16"]) == 2
    assert "--dim: is of --model_name_or_path static" in capsys.readouterr().err


def test_transformers_alone_has_no_table(tmp_path, capsys):
    save_model(build_static(), tmp_path / "m")
    assert json.loads((tmp_path / "m" / "tokenizer.json").read_text())["truncation"] is None
    assert export([str(tmp_path / "m"), "--to", "hf"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "--to: " in error
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_model_with_more_on_top_is_trained_as_it_is(tmp_path):
    pieces = Tokenizer.from_file(str(EMBEDDED / "bert-mini-wiki" / "tokenizer.json"))
    model = SentenceTransformer(
        modules=[StaticEmbedding(pieces, embedding_dim=8), Dense(8, 4)], device="cpu"
    )
    model.save(str(tmp_path / "m"))
    settings = TextSettings(str(tmp_path / "m"), views="crop", pooler_type="avg")
    initial = load_initial_model(settings)
    np.testing.assert_allclose(encode(initial.model, TEXTS), model.encode(TEXTS), atol=1e-6)
    embeddings = initial.embedder(torch.tensor([5, 6, 7]), torch.tensor([1, 2]))
    assert embeddings.shape == (2, 4)
