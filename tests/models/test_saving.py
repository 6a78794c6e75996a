"""The one saved layout: what sentence-transformers and this package read from it, with a head and
without.
"""

import json
import random

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences, set_dropout
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.loading import check_saving, load_saved
from dystress_text.errors import UserError
from dystress_text.programs.export import main as export

SENTENCES = [
    *make_sentences(7),
    " ".join(["cat"] * 100),
]  # the last one is longer than the 40 positions


def with_head(family="bert", pooler="cls", normalize=False):
    encoder = SentenceEncoder(
        build_transformer(family), pooler, True, keep_head=True, normalize=normalize
    )
    torch.nn.init.normal_(encoder.head.weight)  # far from the identity and from 0
    torch.nn.init.normal_(encoder.head.bias)
    return encoder


def by_hand(encoder, tokenizer):
    """In fp64, from the vectors without a head."""
    bare = (
        encoder.encode_by_pooler(SENTENCES, tokenizer, [encoder.pooler_type])[encoder.pooler_type]
        .double()
        .numpy()
    )
    weight, bias = (parameter.detach().double().numpy() for parameter in encoder.head.parameters())
    vectors = np.tanh(bare @ weight.T + bias)
    return (
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if encoder.normalize else vectors
    )


def close(vectors, expected, atol=1e-5):
    np.testing.assert_allclose(np.asarray(vectors), expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("family", "pooler"),
    [("bert", "cls"), ("roberta", "avg_top2"), ("distilbert", "avg_first_last"), ("modernbert", "avg"),
     ("llama", "last")],
)  # fmt: skip
def test_a_saved_model_gives_the_vectors_of_evaluation(family, pooler, tmp_path, tokenizer):
    encoder = SentenceEncoder(build_transformer(family), pooler)
    before = torch.get_rng_state()
    encoder.save(tmp_path, tokenizer)
    assert torch.equal(before, torch.get_rng_state())
    assert not encoder.transformer.config.output_hidden_states  # it goes on training as it was
    assert tokenizer.model_max_length > 10**9
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    close(loaded.encode(SENTENCES), encoder.encode(SENTENCES, tokenizer), 1e-6)
    assert loaded.max_seq_length == 40
    assert not list(tmp_path.glob("*_Dense"))  # a head that is not kept is not saved
    assert len({file.stat().st_mode for file in tmp_path.rglob("*") if file.is_file()}) == 1


def test_the_layout_has_the_words_of_5_1(tmp_path, tokenizer, recwarn):
    with_head("bert", "avg_top2", normalize=True).save(tmp_path, tokenizer)
    modules = json.loads((tmp_path / "modules.json").read_text())
    kinds = ["Transformer", "WeightedLayerPooling", "Pooling", "Dense", "Normalize"]
    assert [module["type"] for module in modules] == [
        f"sentence_transformers.models.{kind}" for kind in kinds
    ]
    settings = [
        json.loads((tmp_path / module["path"] / "config.json").read_text())
        for module in modules[2:4]
    ]
    assert settings[0].keys() >= {"word_embedding_dimension", "pooling_mode_mean_tokens"}
    assert settings[1].keys() == {"in_features", "out_features", "bias", "activation_function"}
    assert (
        "TokenizersBackend"
        not in (tmp_path / "0_Transformer" / "tokenizer_config.json").read_text()
    )
    assert not list(tmp_path.rglob("*.bin"))
    SentenceTransformer(str(tmp_path), device="cpu")
    assert [str(w.message) for w in recwarn if "sentence_transformers" in str(w.filename)] == []


@pytest.mark.parametrize(
    ("family", "pooler", "normalize"),
    [("bert", "cls", False), ("roberta", "cls", True), ("mpnet", "avg_top2", False)],
)
def test_a_kept_head_is_part_of_the_model_everywhere(
    family, pooler, normalize, tmp_path, tokenizer, capsys
):
    encoder = with_head(family, pooler, normalize)
    expected = by_hand(encoder, tokenizer)
    encoder.save(tmp_path / "out", tokenizer)
    close(SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(SENTENCES), expected)
    again, its_tokenizer = load_saved(tmp_path / "out")
    close(again.encode(SENTENCES, its_tokenizer), expected)
    if pooler == "cls":  # transformers alone has a place for it, in the pooler
        assert export([str(tmp_path / "out"), "--to", "hf"]) == 0
        copy = tmp_path / "out-hf"
        batch = AutoTokenizer.from_pretrained(copy)(
            SENTENCES, padding=True, truncation=True, return_tensors="pt"
        )
        with torch.no_grad():
            vectors = AutoModel.from_pretrained(copy).eval()(**batch).pooler_output
        close(torch.nn.functional.normalize(vectors) if normalize else vectors, expected)
    else:
        assert export([str(tmp_path / "out"), "--to", "hf"]) == 2
        assert (
            "does not follow the first token; native and onnx can hold it"
            in capsys.readouterr().err
        )


@pytest.mark.parametrize(
    ("family", "kept"),
    [
        ("gpt2", False),
        ("openai-gpt", False),
        ("ctrl", False),
        ("xlm", False),
        ("xlnet", False),
        ("bert", True),
    ],
)
def test_token_types_that_an_encoder_takes_for_words_are_not_given(family, kept, tmp_path):
    tokenizer = build_tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    encoder = SentenceEncoder(build_transformer(family), "avg").eval()
    encoder.save(tmp_path, tokenizer)
    assert "token_type_ids" in tokenizer.model_input_names
    assert ("token_type_ids" in AutoTokenizer.from_pretrained(tmp_path)("a cat")) == kept
    with torch.no_grad():  # by hand, one sentence at a time
        states = [
            encoder.transformer(torch.tensor([tokenizer(s)["input_ids"]]))[0][0]
            for s in SENTENCES[:7]
        ]
    expected = torch.stack([rows.mean(0) for rows in states])
    close(SentenceTransformer(str(tmp_path), device="cpu").encode(SENTENCES[:7]), expected)
    close(load_saved(tmp_path)[0].encode(SENTENCES[:7], tokenizer), expected)


@pytest.mark.parametrize("lora", [False, True])
def test_the_check_before_a_run_leaves_no_trace(lora, tmp_path, tokenizer):
    encoder = with_head("bert", "cls")
    set_dropout(encoder, 0.1)
    if lora:
        encoder.add_lora(2)
    weights = {name: x.clone() for name, x in encoder.train().state_dict().items()}

    def random_states():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    before = random_states()
    check_saving(encoder, tokenizer, tmp_path / "scratch")
    assert (random_states(), encoder.training) == (before, True)
    assert encoder.state_dict().keys() == weights.keys()
    assert all(torch.equal(x, weights[name]) for name, x in encoder.state_dict().items())
    assert list(tmp_path.iterdir()) == []


def raising(error):
    def refuse(*_, **__):
        raise error

    return refuse


def another_weight(encoder, monkeypatch):
    save = encoder.transformer.save_pretrained

    def damaged(path):
        save(path)
        weights = load_file(f"{path}/model.safetensors")
        weights["encoder.layer.2.output.LayerNorm.weight"] *= 1.001
        save_file(weights, f"{path}/model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(encoder.transformer, "save_pretrained", damaged)


def shared_weights(encoder, monkeypatch):
    first, second, _ = encoder.transformer.encoder.layer
    second.output.dense.weight = first.output.dense.weight


def no_tokenizer(encoder, monkeypatch):
    error = NotImplementedError("this tokenizer\ncannot be saved")
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", raising(error))


def full_disk(encoder, monkeypatch):
    error = OSError(28, "No space left on device")
    monkeypatch.setattr(encoder.transformer, "save_pretrained", raising(error))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(another_weight, "is not the encoder \\(its vectors differ from the encoder's\\): take another encoder"),
     (shared_weights, "is not the encoder \\(.*shared.*\\): take another encoder"),
     (no_tokenizer, "is not the encoder \\(this tokenizer cannot be saved\\): take another encoder"),
     (full_disk, "output_dir: cannot write to .*No space left on device")],
)  # fmt: skip
def test_what_cannot_be_saved_is_one_line_before_the_first_step(spoil, said, tmp_path, monkeypatch):
    encoder, tokenizer = SentenceEncoder(build_transformer("bert"), "avg"), build_tokenizer()
    spoil(encoder, monkeypatch)
    with pytest.raises(UserError, match=said) as caught:
        check_saving(encoder, tokenizer, tmp_path / "scratch")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
