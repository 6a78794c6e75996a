"""What a run starts from: SimCSE's folders in both layouts, and models of sentence-transformers."""

import json

import pytest
import torch
from hub_server import hub_server, with_hub
from model_cases import build_model, packed_batch
from search_cases import make_collection
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
    WeightedLayerPooling,
)
from simcse_cases import SENTENCES, by_hand, close, simcse_folder
from torch.nn.functional import normalize

from dystress_text.config.settings import TextSettings
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.evaluation.embedder import load_model
from dystress_text.evaluation.retrieval import read_collection
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.models.embedder import can_pack, encode, without_normalization
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


@pytest.mark.parametrize(
    ("raw", "options", "source"),
    [(True, {"supervised": True}, "mlp"), (True, {"pooler_type": "avg"}, None), (False, {}, "new")],
)
def test_origin_of_the_head(raw, options, source, tmp_path):
    transformer, mlp = simcse_folder(tmp_path / "m", raw=raw)
    initial = load_initial_model(TextSettings(str(tmp_path / "m"), **options))
    own = initial.model[0].model.state_dict()
    for name, tensor in transformer.state_dict().items():
        assert name.startswith("pooler.") or torch.equal(own[name], tensor), name
    kept = [module for module in initial.model if isinstance(module, Dense)]
    heads = [*kept, *([initial.embedder.head] if initial.embedder.head is not None else [])]
    assert len(heads) == (source is not None)
    assert len(kept) == (source == "mlp")
    for head in heads:
        assert torch.equal(head.linear.weight, mlp.weight) == (source == "mlp")
        assert torch.equal(head.linear.bias, mlp.bias) == (source == "mlp")
    if "pooler_type" not in options:
        vectors = without_normalization(initial.model).encode(SENTENCES)
        close(vectors, by_hand(transformer, mlp if source == "mlp" else None))


def test_prompts_and_similarity_are_kept(flags, tmp_path, capsys):
    """A default prompt is for sentences, the one for queries for a collection's; the text itself is
    read without.
    """
    kept = {
        "prompts": {"query": "the cat saw ", "document": "", "mine": "red house "},
        "default_prompt_name": "mine",
        "similarity_fn_name": "dot",
    }
    build_model("bert", "avg", **kept).save(str(tmp_path / "start"))
    collection, out = make_collection(tmp_path / "made"), tmp_path / "out"
    more = [
        f"--model_name_or_path={tmp_path / 'start'}",
        f"--eval_retrieval={collection}",
        "--eval_set=mini_sts",
    ]
    assert main([*(f for f in flags if not f.startswith(("--model", "--pooler"))), *more]) == 0
    assert "prompts: query, mine; training reads plain texts" in capsys.readouterr().out
    assert export([str(out), "--to", "native"]) == export([str(out), "--to", "hf"]) == 0
    for folder in (out, tmp_path / "out-native"):
        config = json.loads((folder / "config_sentence_transformers.json").read_text())
        assert {name: config[name] for name in kept} == kept
        assert "sentence_transformers" not in json.loads((folder / "config.json").read_text())
    trained = json.loads((out / "run.json").read_text())["trained"]
    model, found = SentenceTransformer(str(out), device="cpu"), read_collection(collection)
    relevant = {query: set(scores) for query, scores in found.relevant.items()}
    truth = InformationRetrievalEvaluator(dict(found.queries), dict(found.documents), relevant)(
        model
    )
    assert trained["made_ndcg@10"] == pytest.approx(100 * truth["dot_ndcg@10"], abs=1e-4)
    units = torch.nn.functional.normalize(
        torch.from_numpy(model.encode(list(eval_pairs("mini_sts").sentences)))
    )
    uniformity = torch.pdist(units).square().mul(-2).exp().mean().log()
    assert trained["mini_sts_uniformity"] == pytest.approx(float(uniformity), abs=1e-5)
    (tmp_path / "start" / "1_Pooling" / "config.json").write_text(
        json.dumps(
            {"word_embedding_dimension": 16, "pooling_mode": "mean", "include_prompt": False}
        )
    )
    without = load_initial_model(TextSettings(str(tmp_path / "start"))).model
    theirs = SentenceTransformer(str(tmp_path / "start"), device="cpu").encode(SENTENCES)
    close(encode(without, SENTENCES), torch.as_tensor(theirs))


def test_models_from_the_hub_and_its_cache(tmp_path):
    transformer, mlp = simcse_folder(tmp_path / "sup", raw=False)
    st = tmp_path / "st"
    build_model("bert", "avg", head=True, normalize=True).save(str(st))
    expected = torch.as_tensor(SentenceTransformer(str(st), device="cpu").encode(SENTENCES))
    with hub_server() as (address, files, _):
        for folder in (tmp_path / "sup", st):
            files[f"models/someone/{folder.name}"] = {
                str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()
            }
        for offline in ("0", "1"):
            with with_hub(address, tmp_path / "home", HF_HUB_OFFLINE=offline):
                close(load_model("someone/sup", "pooler")[0](SENTENCES), by_hand(transformer, mlp))
                initial = load_initial_model(TextSettings("someone/st"))
                close(initial.model.encode(SENTENCES), expected)
                close(normalize(load_model("someone/st", None)[0](SENTENCES)), expected)
                with pytest.raises(UserError, match=r"model: .*someone/sup"):
                    load_model("someone/sup", None)
                with pytest.raises(UserError, match=r"^model_name_or_path: .*someone/none"):
                    load_initial_model(TextSettings("someone/none"))


# ---- sentence-transformers models


def st_model(folder, tiny_bert, pooling="mean", layers=(), more=(), limit=None, **settings):
    """A model that sentence-transformers itself has put together and saved."""
    modules = [Transformer(str(tiny_bert), max_seq_length=limit)]
    modules[0].model.config.output_hidden_states = bool(layers)
    if layers:
        weights = torch.zeros(4)
        weights[list(layers)] = 1.0
        modules.append(WeightedLayerPooling(16, 3, 0, torch.nn.Parameter(weights)))
    modules.append(Pooling(16, pooling))
    torch.manual_seed(3)
    modules += [Dense(16, 16) if module is Dense else module() for module in more]
    model = SentenceTransformer(modules=modules, device="cpu", **settings)
    model.save(str(folder))
    return torch.as_tensor(model.encode(SENTENCES))


@pytest.mark.parametrize(
    ("pooling", "layers", "more", "limit", "pooler"),
    [
        ("cls", (), (Dense,), 12, "cls"),
        ("mean", (), (Dense, Normalize), 20, "avg"),
        ("mean", (1, -1), (Normalize,), None, "avg_first_last"),
        ("mean", (-2, -1), (), 9, "avg_top2"),
    ],
)
def test_a_model_is_kept(pooling, layers, more, limit, pooler, tiny_bert, tmp_path):
    expected = st_model(tmp_path / "m", tiny_bert, pooling, layers, more, limit)
    initial = load_initial_model(TextSettings(str(tmp_path / "m"), max_seq_length=9))
    assert initial.pooler == pooler
    close(initial.model.encode(SENTENCES), expected)
    close(encode(initial.model, SENTENCES), expected)
    initial.save(tmp_path / "again")
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    close(torch.as_tensor(again.encode(SENTENCES)), expected)
    assert again.max_seq_length == (limit or 40)


def test_other_modules_are_trained(tiny_bert, tmp_path):
    for number, given in enumerate(
        (
            {"pooling": "max"},
            {"more": (Dense, Dense)},
            {"layers": (0, 2, 3)},
            {"more": (lambda: Dense(16, 16, activation_function=torch.nn.Sigmoid()),)},
        )
    ):
        folder = tmp_path / str(number)
        expected = st_model(folder, tiny_bert, **given)
        initial = load_initial_model(TextSettings(str(folder)))
        close(initial.model.encode(SENTENCES), expected)
        initial.save(tmp_path / f"again-{number}")
        again = SentenceTransformer(str(tmp_path / f"again-{number}"), device="cpu")
        close(torch.as_tensor(again.encode(SENTENCES)), expected)
        initial.embedder.train()
        batch = packed_batch(initial.model, SENTENCES[:4])
        initial.embedder(*batch, packed=can_pack(initial.model)).square().sum().backward()
        assert initial.model[0].model.get_input_embeddings().weight.grad.any()
