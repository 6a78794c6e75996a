"""Initial models: SimCSE's folders in both layouts, and models of sentence-transformers."""

import json
import time

import pytest
import torch
from hub_server import hub_server, with_hub
from model_cases import build_model, packed_batch, without_normalization
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
    WeightedLayerPooling,
)
from simcse_cases import SENTENCES, by_hand, close, simcse_folder

from dystress_text.errors import UserError
from dystress_text.evaluation.text_encoder import load_model
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.finetuning.settings import TextSettings
from dystress_text.models.encoding import can_pack, encode
from dystress_text.programs.export import main as export
from dystress_text.programs.train import main


@pytest.mark.parametrize(
    ("family", "raw", "suffix"), [("bert", True, "bin"), ("roberta", False, "safetensors")]
)
def test_simcse_layouts_with_and_without_mlp(family, raw, suffix, tmp_path):
    transformer, mlp = simcse_folder(tmp_path / "m", family, raw, suffix)
    embed, _ = load_model(str(tmp_path / "m"), "pooler")
    close(embed(SENTENCES), by_hand(transformer, mlp))
    without, _ = load_model(str(tmp_path / "m"), "cls")
    close(without(SENTENCES), by_hand(transformer))


def test_the_head_is_simcse_s_and_is_kept_with_supervision(tmp_path):
    transformer, mlp = simcse_folder(tmp_path / "m")
    initial = load_initial_model(TextSettings(str(tmp_path / "m"), supervised=True))
    assert initial.embedder.head is None
    vectors = without_normalization(initial.model).encode(SENTENCES)
    close(vectors, by_hand(transformer, mlp))


def test_a_new_head_is_for_training_alone(tmp_path):
    transformer, mlp = simcse_folder(tmp_path / "m", raw=False)
    initial = load_initial_model(TextSettings(str(tmp_path / "m")))
    head = initial.embedder.head
    assert not torch.equal(head.linear.weight, mlp.weight)
    assert not head.linear.bias.any()
    close(without_normalization(initial.model).encode(SENTENCES), by_hand(transformer))
    mean = load_initial_model(TextSettings(str(tmp_path / "m"), pooler_type="avg"))
    assert mean.embedder.head is None


def test_prompts_and_similarity_are_kept(flags, tmp_path):
    kept = {
        "prompts": {"query": "the cat saw ", "document": "", "mine": "red house "},
        "default_prompt_name": "mine",
        "similarity_fn_name": "dot",
    }
    start = tmp_path / "start"
    build_model("bert", "avg", **kept).save(str(start))
    options = [*flags, f"--model_name_or_path={start}", "--pooler_type=avg", "--max_steps=1"]
    assert main([*options, "--eval_set=none"]) == 0
    assert export([str(tmp_path / "out"), "--to", "native"]) == 0
    for folder in (tmp_path / "out", tmp_path / "out-native"):
        config = json.loads((folder / "config_sentence_transformers.json").read_text())
        assert {name: config[name] for name in kept} == kept
    pooling = {"word_embedding_dimension": 16, "pooling_mode": "mean", "include_prompt": False}
    (start / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    ours = load_initial_model(TextSettings(str(start))).model
    theirs = SentenceTransformer(str(start), device="cpu").encode(SENTENCES)
    close(encode(ours, SENTENCES), torch.as_tensor(theirs))


def files_in(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_models_from_the_hub_and_its_cache(tmp_path):
    transformer, mlp = simcse_folder(tmp_path / "sup", raw=False)
    build_model("bert", "avg", head=True, normalize=True).save(str(tmp_path / "st"))
    expected = SentenceTransformer(str(tmp_path / "st"), device="cpu").encode(SENTENCES)
    home = tmp_path / "home"
    with hub_server() as (address, files, _):
        for name in ("sup", "st"):
            files[f"models/someone/{name}"] = files_in(tmp_path / name)
        for offline in ("0", "1"):
            with with_hub(address, home, HF_HUB_OFFLINE=offline):
                close(load_model("someone/sup", "pooler")[0](SENTENCES), by_hand(transformer, mlp))
                initial = load_initial_model(TextSettings("someone/st"))
                close(initial.model.encode(SENTENCES), torch.as_tensor(expected))
                with pytest.raises(UserError, match=r"^model_name_or_path: .*someone/none"):
                    load_initial_model(TextSettings("someone/none"))
    with with_hub("http://127.0.0.1:1", home):  # it refuses connections
        begin = time.monotonic()
        initial = load_initial_model(TextSettings("someone/st"))
        assert time.monotonic() - begin < 10  # huggingface_hub tries for half a minute, per file
    close(initial.model.encode(SENTENCES), torch.as_tensor(expected))


def st_model(folder, tiny_bert, pooling="mean", layers=(), more=(), limit=None):
    """Save a model that sentence-transformers has put together; return its embeddings."""
    modules = [Transformer(str(tiny_bert), max_seq_length=limit)]
    modules[0].model.config.output_hidden_states = bool(layers)
    if layers:
        weights = torch.zeros(4)
        weights[list(layers)] = 1.0
        modules.append(WeightedLayerPooling(16, 3, 0, torch.nn.Parameter(weights)))
    modules.append(Pooling(16, pooling))
    torch.manual_seed(3)
    for module in more:
        modules.append(Dense(16, 16) if module is Dense else module())
    model = SentenceTransformer(modules=modules, device="cpu")
    model.save(str(folder))
    return torch.as_tensor(model.encode(SENTENCES))


@pytest.mark.parametrize(
    ("pooling", "layers", "more", "limit", "pooler"),
    [
        ("cls", (), (Dense,), 12, "cls"),
        ("mean", (), (Dense, Normalize), 20, "avg"),
        ("mean", (1, -1), (Normalize,), None, "avg_first_last"),
        ("max", (), (), None, None),
    ],
)
def test_a_model_is_kept(pooling, layers, more, limit, pooler, tiny_bert, tmp_path):
    expected = st_model(tmp_path / "m", tiny_bert, pooling, layers, more, limit)
    initial = load_initial_model(TextSettings(str(tmp_path / "m"), max_seq_length=9))
    assert initial.pooler == pooler
    close(encode(initial.model, SENTENCES), expected)
    initial.save(tmp_path / "again")
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    close(torch.as_tensor(again.encode(SENTENCES)), expected)
    assert again.max_seq_length == (limit or 40)


def sigmoid():
    return Dense(16, 16, activation_function=torch.nn.Sigmoid())


@pytest.mark.parametrize("more", [(Dense, Dense), (sigmoid,)])
def test_other_modules_are_trained(more, tiny_bert, tmp_path):
    st_model(tmp_path / "m", tiny_bert, more=more)
    initial = load_initial_model(TextSettings(str(tmp_path / "m")))
    initial.embedder.train()
    batch = packed_batch(initial.model, SENTENCES[:4])
    initial.embedder(*batch, packed=can_pack(initial.model)).square().sum().backward()
    assert initial.model[0].model.get_input_embeddings().weight.grad.any()
