"""What training embeds is what sentence-transformers' ``encode`` of the saved model gives."""

import json

import numpy as np
import pytest
import torch
from conftest import WORDS, build_tokenizer, build_transformer, make_sentences
from model_cases import build_model, build_static, save_encoder
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.functional import normalize

from dystress_text.errors import ParameterError, UserError
from dystress_text.finetuning.arguments import parse
from dystress_text.finetuning.initial_model import check_saving, load_initial_model
from dystress_text.finetuning.texts import training_text
from dystress_text.finetuning.training_data import prepare_data
from dystress_text.models.encoding import encode
from dystress_text.models.model_with_heads import ModelWithHeads
from dystress_text.programs.train import main

LENGTH = 12
TEXTS = [*make_sentences(16), "cat", " ".join(["the old dog"] * 20)]


def chat(folder):
    """A tokenizer with a chat template, which sentence-transformers 6 puts around plain text."""
    save_encoder(folder / "encoder", "bert")
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}the man {{ message['content'] }} ran{% endfor %}"
    )
    tokenizer.save_pretrained(folder / "encoder")
    module = Transformer(str(folder / "encoder"))
    assert "message" in module.modality_config
    return [module, Pooling(16, "mean")]


def without_special_tokens(folder):
    save_encoder(folder / "encoder", "bert")
    kwargs = {"text": {"add_special_tokens": False}}
    module = Transformer(str(folder / "encoder"), processing_kwargs=kwargs)
    return [module, Pooling(16, "mean")]


def truncating(folder):
    model = build_static(8)
    model[0].tokenizer.enable_truncation(5)
    return list(model)


def normalized_inside(folder):
    first, pooling = build_model("bert", "avg")
    torch.manual_seed(5)
    return [first, pooling, Normalize(), Dense(16, 8, bias=True), Dense(8, 8), Normalize()]


def with_padding_token(folder):
    """A RoBERTa whose tokenizer reads [PAD] in a text, of which there are some here."""
    return list(build_model("roberta", "avg"))


BASES = [chat, without_special_tokens, truncating, normalized_inside, with_padding_token]


def save_base(build, folder):
    base = folder / "base"
    SentenceTransformer(modules=build(folder), device="cpu").save(str(base))
    return base


def prepared(base, folder, *more):
    """Return the initial model and the data of a run on TEXTS."""
    texts = [*TEXTS, "the [PAD] cat [PAD] [SEP] sat"]
    (folder / "texts.txt").write_text("\n".join(texts))
    options = {
        "model_name_or_path": base,
        "train_file": folder / "texts.txt",
        "output_dir": folder / "out",
        "max_seq_length": LENGTH,
        "loss": "infonce(0.05)",
        "eval_set": "none",
        "train_batch_size": 8,
        "max_steps": 1,
    }
    settings = parse([*(f"--{name}={value}" for name, value in options.items()), *more])
    text = training_text(settings.text)
    initial = load_initial_model(settings.text, settings.given, text)
    return initial, prepare_data(text, initial, settings), texts


def close(vectors, expected):
    """Compare the unit vectors."""
    found, expected = (normalize(torch.as_tensor(each), dim=1) for each in (vectors, expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


WHOLE = ["--views=crop", "--crop_min=1", "--crop_max=1"]  # of a sample, twice


@pytest.mark.parametrize("build", BASES)
def test_the_trained_pass_equals_encode(build, tmp_path):
    base = save_base(build, tmp_path)
    is_static = build is truncating
    more = [*WHOLE, "--max_seq_length=99"] if is_static else []
    initial, data, texts = prepared(base, tmp_path, *more)
    batch = data.corpus.batch(np.arange(len(texts)))
    embeddings = initial.embedder.eval()(batch["token_ids"], batch["lengths"], batch["longest"])
    initial.save(tmp_path / "saved")
    saved = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    if not is_static:
        saved.max_seq_length = LENGTH
    close(embeddings[: len(texts)], saved.encode(texts))
    theirs = SentenceTransformer(str(base), device="cpu").encode(texts)
    close(encode(initial.model, texts), theirs)


def test_crops_are_read_as_encode_reads_them(tmp_path):
    base = save_base(chat, tmp_path)
    initial, data, _ = prepared(base, tmp_path, "--views=crop")
    batch = data.corpus.batch(np.arange(5), 3)
    pairs = [data.corpus.crops.views(text, 3, number) for number, text in enumerate(TEXTS[:5])]
    crops = [first for first, _ in pairs] + [second for _, second in pairs]
    theirs = SentenceTransformer(str(base), device="cpu")
    theirs.max_seq_length = LENGTH
    embeddings = initial.embedder.eval()(batch["token_ids"], batch["lengths"])
    close(embeddings, theirs.encode(crops))


def type_ids(folder):
    """XLNet's tokenizer gives the last token another type, which training would not know."""
    tokenizer = build_tokenizer("$A:0 [CLS]:1")
    tokenizer.model_input_names = ["input_ids", "attention_mask", "token_type_ids"]
    transformer = build_transformer("bert")
    with torch.no_grad():
        transformer.embeddings.token_type_embeddings.weight[1] = 1.0
    transformer.save_pretrained(folder / "encoder")
    tokenizer.save_pretrained(folder / "encoder")
    return [Transformer(str(folder / "encoder")), Pooling(16, "mean")]


def padding_matters(folder):
    return list(build_model("fnet", "avg"))


@pytest.mark.parametrize("build", [type_ids, padding_matters])
def test_a_model_that_training_would_embed_otherwise_is_refused(build, tmp_path):
    base = save_base(build, tmp_path)
    before = SentenceTransformer(str(base), device="cpu").max_seq_length
    initial, _, _ = prepared(base, tmp_path)
    with pytest.raises(ParameterError, match=r"\Amodel_name_or_path: [^\n]+\Z"):
        check_saving(initial, LENGTH, tmp_path / "scratch")
    assert initial.model.max_seq_length == before
    assert not (tmp_path / "scratch").exists()


def test_a_model_that_cannot_encode_a_trial_is_refused_in_one_line(tmp_path):
    base = save_base(chat, tmp_path)
    template = "{% if not messages[0]['content'] %}{{ raise_exception('no text') }}{% endif %}"
    (base / "chat_template.jinja").write_text(template + "the old dog")
    initial, _, _ = prepared(base, tmp_path)
    with pytest.raises(UserError, match=r"\A[^\n]*no text[^\n]*\Z"):
        check_saving(initial, LENGTH, tmp_path / "scratch")


@pytest.mark.parametrize("preset", ["quickstart", "own-text"])
def test_every_run_checks_the_pass(preset, tmp_path, monkeypatch, text_file):
    """A forward that is wrong in training alone is seen before the first step."""

    def shifted(self, *batch, **options):
        return forward(self, *batch, **options) + 0.1

    forward = ModelWithHeads.forward
    monkeypatch.setattr(ModelWithHeads, "forward", shifted)
    options = [f"--train_file={text_file}", f"--output_dir={tmp_path / 'out'}", "--max_steps=1"]
    assert main([f"--preset={preset}", *options, "--train_batch_size=8"]) == 2
    assert not (tmp_path / "out").exists()


def test_a_truncating_static_base_still_truncates_in_a_hybrid(tmp_path):
    base = save_base(truncating, tmp_path)
    dense = tmp_path / "dense"
    build_model("bert", "avg").save(str(dense))
    initial, _, texts = prepared(base, tmp_path, "--views=crop", f"--hybrid={dense}")
    check_saving(initial, LENGTH, tmp_path / "scratch")
    initial.save(tmp_path / "saved")
    saved = SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    theirs = SentenceTransformer(str(base), device="cpu")
    close(saved.encode(texts)[:, -8:], theirs.encode(texts))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_table_trains_in_fp32(dtype, tmp_path):
    table = build_static(8).to(dtype)
    table.save(str(tmp_path / "base"))
    before = torch.get_default_dtype()
    initial, _, _ = prepared(tmp_path / "base", tmp_path, "--views=crop")
    assert {p.dtype for p in initial.embedder.parameters()} == {torch.float32}
    assert torch.get_default_dtype() == before


def test_a_run_under_another_default_dtype_is_the_same(tmp_path, text_file):
    options = ["--preset=own-text", f"--train_file={text_file}", "--max_steps=3", "--dim=16"]
    weights = []
    for dtype in (torch.float32, torch.bfloat16):
        folder = tmp_path / str(dtype)
        torch.set_default_dtype(dtype)
        try:
            assert main([*options, f"--output_dir={folder}", "--train_batch_size=8"]) == 0
            assert torch.get_default_dtype() == dtype
        finally:
            torch.set_default_dtype(torch.float32)
        weights.append((folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_token_ids_beyond_16_bits_in_a_small_vocabulary(tmp_path):
    ids = {word: 70_000 + i for i, word in enumerate(WORDS)} | {"[PAD]": 0, "[UNK]": 1}
    model = build_static(8)
    model[0].tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    model[0].tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(1)
    model[0].embedding = torch.nn.EmbeddingBag(70_000 + len(WORDS), 8)
    model.save(str(tmp_path / "base"))
    _, data, texts = prepared(tmp_path / "base", tmp_path, *WHOLE)
    batch = data.corpus.batch(np.array([16]))
    assert texts[16] == "cat"
    assert batch["token_ids"].unique().tolist() == [ids["cat"]]


@pytest.mark.parametrize("kind", ["static", "bert"])
@pytest.mark.parametrize("fault", ["too few rows", "nan"])
def test_a_base_with_unusable_weights_is_refused(kind, fault, tmp_path, flags, capfd):
    model = build_static(8) if kind == "static" else build_model("bert", "avg")
    first = model[0]
    table = first.embedding if kind == "static" else first.model.get_input_embeddings()
    if fault == "nan":
        table.weight.data[-1] = float("nan")
    elif kind == "static":
        first.embedding = torch.nn.EmbeddingBag.from_pretrained(table.weight[:100])
    else:
        first.model.resize_token_embeddings(20)
    model.save(str(tmp_path / "base"))
    more = ["--views=crop"] if kind == "static" else []
    options = [*flags, f"--model_name_or_path={tmp_path / 'base'}", "--eval_set=none"]
    assert main([*options, "--pooler_type=avg", *more]) != 0
    error = capfd.readouterr().err
    assert "--model_name_or_path" in error
    assert "Traceback" not in error


def test_a_head_on_two_poolings(tmp_path, flags):
    first = build_model("bert", "avg")[0]
    model = SentenceTransformer(modules=[first, Pooling(16, ("cls", "mean"))], device="cpu")
    model.save(str(tmp_path / "base"))
    options = [*flags, f"--model_name_or_path={tmp_path / 'base'}", "--eval_set=none"]
    assert main([*options, "--preset=small", "--max_steps=2", "--views=dropout"]) == 0
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert saved.get_embedding_dimension() == 32


def test_dropout_leaves_layerdrop_alone(tmp_path):
    save_encoder(tmp_path, "bert")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text()) | {"encoder_layerdrop": 0.05, "drop_path_rate": 0.1}
    file.write_text(json.dumps(config))
    settings = parse([f"--model_name_or_path={tmp_path}", "--dropout=0.3"]).text
    config = load_initial_model(settings).embedder.model[0].model.config
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.3
    assert (config.encoder_layerdrop, config.drop_path_rate) == (0.05, 0.1)
