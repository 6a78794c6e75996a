"""Poolers, dropout views, the head, and the saved sentence-transformers model."""

import json
import shutil

import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, BertModel

from dystress_text.encoders.encoder import SentenceEncoder, check_views, length_limit, load_encoder
from dystress_text.encoders.pooling import POOLERS, pool
from dystress_text.errors import UserError

FAMILIES = ("bert", "roberta", "distilbert", "mpnet", "modernbert")


def batch(tokenizer, sentences):
    encoded = tokenizer(sentences, padding=True, return_tensors="pt")
    return encoded["input_ids"][encoded["attention_mask"].bool()], encoded["attention_mask"]


def padded(ids, mask):
    return torch.zeros_like(mask).masked_scatter(mask.bool(), ids)


def test_poolers_against_loops():
    torch.manual_seed(0)
    states = [torch.randn(2, 4, 3) for _ in range(4)]  # the embedding layer and three more
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])

    def mean(layers, row):
        tokens = [t for t in range(4) if mask[row, t]]
        return sum(sum(states[k][row, t] for k in layers) / len(layers) for t in tokens) / len(tokens)

    for name, layers in {"avg": [3], "avg_top2": [2, 3], "avg_first_last": [1, 3]}.items():
        expected = torch.stack([mean(layers, row) for row in range(2)])
        torch.testing.assert_close(pool(states, mask, name), expected)
    for name in ("cls", "cls_before_pooler"):
        assert torch.equal(pool(states, mask, name), states[3][:, 0])


EACH_ONCE = pytest.mark.parametrize(  # each family and each pooler
    ("family", "pooler"),
    [("bert", "cls"), ("bert", "avg"), ("roberta", "cls_before_pooler"), ("distilbert", "avg_first_last"),
     ("mpnet", "avg"), ("modernbert", "avg_top2"), ("modernbert", "cls")],
)  # fmt: skip


@EACH_ONCE
def test_views_differ_in_training_and_coincide_in_evaluation(family, pooler, tokenizer):
    encoder = SentenceEncoder(build_transformer(family), pooler)
    ids, mask = batch(tokenizer, make_sentences(4))
    twice = (ids.repeat(2), mask.repeat(2, 1))
    first, second = encoder.train()(*twice).chunk(2)
    assert (first - second).abs().max() > 1e-3
    first, second = encoder.eval()(*twice).chunk(2)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


def test_padding_does_not_change_a_vector(tokenizer):
    encoder = SentenceEncoder(build_transformer("bert"), "avg_first_last").eval()
    short, long = "the cat sat", "the old dog ran slowly to the river and the house"
    alone = encoder(*batch(tokenizer, [short]))
    together = encoder(*batch(tokenizer, [short, long]))[:1]
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("pooler", "given", "expected"),
    [("cls", None, True), ("cls_before_pooler", None, False), ("avg", None, False), ("avg", True, True),
     ("cls", False, False)],
)  # fmt: skip
def test_the_head_follows_simcse_unless_told(pooler, given, expected, tokenizer):
    encoder = SentenceEncoder(build_transformer("bert"), pooler, given)
    assert (encoder.head is not None) == expected
    ids, mask = batch(tokenizer, make_sentences(3))
    bare = encoder.eval()(ids, mask)
    torch.testing.assert_close(bare, pool(encoder._hidden_states(padded(ids, mask), mask, True), mask, pooler))
    if expected:
        for module in encoder.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        torch.testing.assert_close(encoder.train()(ids, mask), torch.tanh(encoder.head(bare)))


SAVED = pytest.mark.parametrize(
    ("family", "pooler"),
    [("bert", "cls"), ("bert", "avg"), ("roberta", "avg_top2"), ("distilbert", "avg_first_last"), ("mpnet", "cls"),
     ("modernbert", "avg")],
)  # fmt: skip


@SAVED
def test_saved_model_gives_the_vectors_of_evaluation(family, pooler, tmp_path, tokenizer):
    encoder = SentenceEncoder(build_transformer(family), pooler)
    sentences = [*make_sentences(6), " ".join(["cat"] * 100)]  # the last one is beyond the 40 positions
    encoder.save(tmp_path, tokenizer)
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    vectors = loaded.encode(sentences, convert_to_tensor=True)
    torch.testing.assert_close(vectors, encoder.encode(sentences, tokenizer), rtol=0, atol=1e-6)
    assert loaded.max_seq_length == 40
    assert loaded.similarity_fn_name == "cosine"
    assert AutoModel.from_pretrained(tmp_path).config.hidden_size == 16
    assert not any("head" in name for name in loaded.state_dict())


# what sentence-transformers and transformers add when they load a model
ADDED_BY_LOADING = {"use_cache", "is_local", "local_files_only"}


@SAVED
def test_the_saved_folder_is_the_one_that_sentence_transformers_writes(family, pooler, tmp_path, tokenizer):
    """Files, settings and tensors; and neither saving nor copying draws a random number."""
    encoder = SentenceEncoder(build_transformer(family), pooler, True, keep_head=True, normalize=pooler == "avg")
    encoder.encode(make_sentences(3), tokenizer)  # which leaves its truncation and padding in the tokenizer
    before = torch.get_rng_state()
    encoder.save(tmp_path / "ours", tokenizer)
    assert torch.equal(before, torch.get_rng_state())
    SentenceTransformer(str(tmp_path / "ours"), device="cpu").save(str(tmp_path / "theirs"), create_model_card=False)
    names = {file.relative_to(tmp_path / "theirs") for file in (tmp_path / "theirs").rglob("*") if file.is_file()}
    assert {file.relative_to(tmp_path / "ours") for file in (tmp_path / "ours").rglob("*") if file.is_file()} == names
    for name in names:
        ours, theirs = tmp_path / "ours" / name, tmp_path / "theirs" / name
        if name.suffix == ".json":
            one, other = json.loads(ours.read_text()), json.loads(theirs.read_text())
            for content in (one, other) if isinstance(one, dict) else ():
                for key in ADDED_BY_LOADING:
                    content.pop(key, None)
            assert one == other, name
        else:
            one, other = load_file(ours), load_file(theirs)
            assert one.keys() == other.keys(), name
            assert all(torch.equal(one[key], other[key]) for key in one), name


@pytest.mark.parametrize("family", FAMILIES)
def test_length_limit_is_the_position_tables(family):
    assert length_limit(build_tokenizer(), build_transformer(family)) == 40


def test_who_may_read_a_saved_model_may_read_all_of_it(tmp_path, tokenizer):
    SentenceEncoder(build_transformer("bert"), "avg_top2").save(tmp_path, tokenizer)
    assert len({file.stat().st_mode for file in tmp_path.rglob("*") if file.is_file()}) == 1


def test_length_limit_of_the_tokenizer_counts_too():
    tokenizer = build_tokenizer()
    tokenizer.model_max_length = 12
    assert length_limit(tokenizer, build_transformer("bert")) == 12


def test_encode_leaves_mode_and_random_state_alone(tokenizer):
    encoder = SentenceEncoder(build_transformer("bert"), "cls").train()
    sentences = make_sentences(5)
    before = torch.get_rng_state()
    one = encoder.encode(sentences, tokenizer, batch_size=2)
    assert encoder.training
    assert torch.equal(before, torch.get_rng_state())
    every = encoder.encode_by_pooler(sentences, tokenizer, POOLERS)
    torch.testing.assert_close(every["cls"], one, rtol=0, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(encoder.encode(sentences, tokenizer, batch_size=2), one, rtol=0, atol=1e-6)


def test_all_trainable_parameters_get_a_gradient(tokenizer):
    """What DistributedDataParallel needs: no trainable parameter outside the graph."""
    for family in FAMILIES:
        encoder = SentenceEncoder(build_transformer(family), "cls")
        encoder.train()(*batch(tokenizer, make_sentences(4))).square().sum().backward()
        missing = [n for n, p in encoder.named_parameters() if p.requires_grad and p.grad is None]
        assert missing == [], family


@pytest.mark.parametrize("name", ["no/such-model", "/no/such/folder", "."])
def test_unloadable_models_are_one_line(name):
    with pytest.raises(UserError, match="no/such|cannot load|tokenizer") as caught:
        load_encoder(name)
    assert "\n" not in str(caught.value)


def test_unknown_pooler_names_the_known(tiny_bert):
    with pytest.raises(UserError, match=r"pooler_type.*avg_first_last"):
        load_encoder(str(tiny_bert), "max")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    build_transformer("bert").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="tokenizer"):
        load_encoder(str(tmp_path))


def test_a_tokenizer_of_another_encoder_is_refused(tmp_path, tokenizer):
    config = build_transformer("bert").config
    config.vocab_size = len(tokenizer) - 1
    BertModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"ids up to {len(tokenizer) - 1} for {len(tokenizer) - 1} token embeddings"):
        load_encoder(str(tmp_path))


def test_a_small_vocabulary_is_a_warning(tmp_path, tokenizer):
    config = build_transformer("bert").config
    config.vocab_size = 10 * len(tokenizer)
    BertModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="belong together"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize("damage", ["model.safetensors", "config.json", "tokenizer.json"])
def test_damaged_files_are_one_line(tmp_path, tiny_bert, damage):
    shutil.copytree(tiny_bert, tmp_path / "model")
    file = tmp_path / "model" / damage
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UserError, match="no/such|cannot load|tokenizer") as caught:
        load_encoder(str(tmp_path / "model"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_by_option(family, tmp_path, tokenizer):
    build_transformer(family).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    check_views(load_encoder(str(tmp_path), dropout=0.2)[0], tokenizer)
    with pytest.raises(UserError, match="^dropout"):
        check_views(load_encoder(str(tmp_path), dropout=0.0)[0], tokenizer)


def test_a_look_at_the_views_disturbs_nothing(tokenizer):
    encoder = SentenceEncoder(build_transformer("bert")).eval()
    before = torch.get_rng_state()
    check_views(encoder, tokenizer)
    assert torch.equal(before, torch.get_rng_state())
    assert not encoder.training
