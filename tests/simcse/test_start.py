"""What a run starts from: SimCSE's folders in both layouts, and models of sentence-transformers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer
from hub_server import hub_environment, hub_server
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    LayerNorm,
    Normalize,
    Pooling,
    Transformer,
    WeightedLayerPooling,
)
from simcse_cases import SENTENCES, by_hand, close, simcse_folder
from transformers import AutoModel, AutoTokenizer

from dystress_text.encoders import saved_model
from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.errors import UserError
from dystress_text.evaluation.embedder import load_model
from dystress_text.senteval import main as evaluate
from dystress_text.simcse.settings import TextSettings
from dystress_text.simcse.start import load_start
from dystress_text.train import main

ROOT = Path(__file__).resolve().parents[2]


# ---- SimCSE's checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "raw", "suffix"),
    [("bert", True, "bin"), ("bert", True, "safetensors"), ("roberta", True, "bin"), ("bert", False, "bin"),
     ("roberta", False, "safetensors")],
)  # fmt: skip
def test_both_layouts_are_evaluated_with_and_without_the_mlp(family, raw, suffix, tmp_path, recwarn):
    transformer, mlp = simcse_folder(tmp_path / "m", family, raw, suffix)
    close(load_model(str(tmp_path / "m"), "pooler")[0](SENTENCES), by_hand(transformer, mlp))
    assert not [w for w in recwarn if "MLP" in str(w.message)]
    close(load_model(str(tmp_path / "m"), "cls")[0](SENTENCES), by_hand(transformer))
    assert len([w for w in recwarn if "leaves its MLP out" in str(w.message)]) == raw
    if not raw:  # what SimCSE's own evaluation computes
        model = AutoModel.from_pretrained(tmp_path / "m").eval()
        batch = AutoTokenizer.from_pretrained(tmp_path / "m")(
            SENTENCES, padding=True, truncation=True, max_length=40, return_tensors="pt"
        )
        with torch.no_grad():
            close(model(**batch).pooler_output, by_hand(transformer, mlp))


def test_with_and_without_the_mlp_are_two_models_for_the_cache(tmp_path):
    simcse_folder(tmp_path / "m")
    with pytest.warns(UserWarning, match="--pooler_type pooler applies it"):
        without = load_model(str(tmp_path / "m"), "cls")[1]
    assert load_model(str(tmp_path / "m"), "pooler")[1].sha256 != without.sha256


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_pooler_without_weights_is_refused(family, tmp_path, capsys):
    transformer = build_transformer(family)
    states = {name: t for name, t in transformer.state_dict().items() if not name.startswith("pooler.")}
    transformer.save_pretrained(tmp_path, state_dict=states)
    build_tokenizer().save_pretrained(tmp_path)
    capsys.readouterr()  # progress of saving
    assert evaluate([f"--model={tmp_path}", "--pooler_type=pooler", "--suite=mini"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no weights of a pooler" in line
    with pytest.raises(UserError, match="--mlp_init pooler"):
        load_start(str(tmp_path), TextSettings(mlp_init="pooler"))


@pytest.mark.parametrize(
    ("raw", "options", "source", "notes"),
    [
        (True, {}, "mlp", ["SimCSE checkpoint: encoder and MLP loaded; ignored: lm_head",
                           "the head starts as SimCSE's MLP and is dropped after training"]),
        (True, {"supervised": True}, "mlp", ["SimCSE checkpoint: encoder and MLP loaded; ignored: lm_head",
                                             "the head starts as SimCSE's MLP and is kept"]),
        (True, {"pooler_type": "avg"}, None, ["SimCSE checkpoint: encoder loaded; ignored: mlp, lm_head"]),
        (True, {"mlp_init": "new"}, "new", ["SimCSE checkpoint: encoder loaded; ignored: mlp, lm_head"]),
        (False, {}, "new", []),
        (False, {"mlp_init": "pooler", "mlp_only_train": False}, "mlp",
         ["the head starts as the encoder's pooler and is kept"]),
    ],
)  # fmt: skip
def test_a_head_starts_where_the_checkpoint_says(raw, options, source, notes, tmp_path):
    transformer, mlp = simcse_folder(tmp_path / "m", raw=raw)
    start = load_start(str(tmp_path / "m"), TextSettings(**options))
    assert list(start.notes) == notes
    own = start.model.transformer.state_dict()
    for name, tensor in transformer.state_dict().items():
        assert name.startswith("pooler.") or torch.equal(own[name], tensor), name
    if source is None:
        assert start.model.head is None
    else:
        assert torch.equal(start.model.head.weight, mlp.weight) == (source == "mlp")
        assert torch.equal(start.model.head.bias, mlp.bias) == (source == "mlp")
    kept = source == "mlp" and start.model.keep_head
    if "pooler_type" not in options:
        close(start.model.encode(SENTENCES, start.tokenizer), by_hand(transformer, mlp if kept else None))


def test_a_simcse_folder_trains_and_says_what_was_taken(flags, tmp_path, capsys):
    simcse_folder(tmp_path / "m")
    given = [*flags, f"--model_name_or_path={tmp_path / 'm'}"]
    assert main([*given, "--mlp_only_train=no", "--learning_rate=1e-30"]) == 0
    assert "SimCSE checkpoint: encoder and MLP loaded; ignored: lm_head" in capsys.readouterr().out
    transformer, mlp = simcse_folder(tmp_path / "same")
    close(SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(SENTENCES), by_hand(transformer, mlp))


@pytest.mark.slow(20)  # programs of their own
def test_published_checkpoints_come_from_the_hub(tmp_path):
    transformer, mlp = simcse_folder(tmp_path / "sup", raw=False)
    simcse_folder(tmp_path / "raw")
    st = tmp_path / "st"
    SentenceEncoder(build_transformer("bert"), "avg", True, keep_head=True, normalize=True).save(st, build_tokenizer())
    code = (
        "import sys, torch; from dystress_text.evaluation.embedder import load_model;"
        "from dystress_text.simcse.settings import TextSettings;"
        "from dystress_text.simcse.start import load_start; sentences = sys.stdin.read().splitlines();"
        "sup = load_model('someone/sup', 'pooler')[0](sentences);"
        "raw = load_model('someone/raw', 'pooler')[0](sentences);"
        "start = load_start('someone/st', TextSettings());"
        "plain = load_start('someone/sup', TextSettings(mlp_init='pooler', mlp_only_train=False));"
        "found = [one.model.encode(sentences, one.tokenizer) for one in (start, plain)];"
        "torch.save([sup, raw, *found], sys.argv[1])"
    )
    with hub_server() as (address, files, _):
        for folder in (tmp_path / "sup", tmp_path / "raw", st):
            files[f"models/someone/{folder.name}"] = {
                str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()
            }
        environment = hub_environment(address, tmp_path / "home")
        for offline in ("0", "1"):  # the second time from the cache
            done = subprocess.run(
                [sys.executable, "-c", code, str(tmp_path / "vectors.pt")], input="\n".join(SENTENCES), text=True,
                env=environment | {"HF_HUB_OFFLINE": offline}, capture_output=True, cwd=ROOT,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            sup, raw, continued, started = torch.load(tmp_path / "vectors.pt")
            (tmp_path / "vectors.pt").unlink()
            close(sup, by_hand(transformer, mlp))
            close(raw, by_hand(transformer, mlp))
            close(started, by_hand(transformer, mlp))
            close(continued, torch.as_tensor(SentenceTransformer(str(st), device="cpu").encode(SENTENCES)))


@pytest.mark.slow  # a program of its own
def test_a_hub_that_fails_is_one_line_and_no_guess(tmp_path):
    """Without modules.json nobody knows how a model pools."""
    with hub_server() as (address, files, faults):
        files["models/someone/m"] = {}
        faults["status"] = 400  # which the hub's own library does not try again
        code = (
            "from dystress_text.simcse.settings import TextSettings; from dystress_text.simcse.start import load_start;"
        )
        code += "load_start('someone/m', TextSettings())"
        environment = hub_environment(address, tmp_path / "home")
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert "UserError: cannot load 'someone/m'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("content", ["{", "[{}]", "[3]"])
def test_a_damaged_list_of_modules_from_the_hub_is_one_line(tmp_path, monkeypatch, content):
    (tmp_path / "modules.json").write_text(content)
    monkeypatch.setattr(saved_model, "snapshot_download", lambda name, **_: tmp_path)
    with pytest.raises(UserError, match="is damaged"):
        load_start("someone/m", TextSettings())


# ---- sentence-transformers models ------------------------------------------------------------------------------------


def st_model(folder, tiny_bert, pooling="mean", layers=(), more=(), limit=None, **settings):
    """A model that sentence-transformers itself has put together and saved."""
    arguments = {"config_kwargs": {"output_hidden_states": True}} if layers else {}
    modules = [Transformer(str(tiny_bert), max_seq_length=limit, **arguments)]
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
        ("mean", (), (), None, "avg"),
        ("cls", (), (), 12, "cls"),
        ("mean", (), (Normalize,), 9, "avg"),
        ("cls", (), (Dense,), None, "cls"),
        ("mean", (), (Dense, Normalize), 20, "avg"),
        ("mean", (1, -1), (Normalize,), None, "avg_first_last"),
        ("mean", (-2, -1), (Dense,), 9, "avg_top2"),
    ],
)
def test_a_model_is_trained_further_as_it_is(pooling, layers, more, limit, pooler, tiny_bert, tmp_path):
    expected = st_model(tmp_path / "m", tiny_bert, pooling, layers, more, limit)
    close(torch.as_tensor(SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(SENTENCES)), expected)
    start = load_start(str(tmp_path / "m"), TextSettings())
    assert start.model.pooler_type == pooler
    assert (start.model.keep_head, start.model.normalize) == (Dense in more, Normalize in more)
    close(start.model.encode(SENTENCES, start.tokenizer), expected)
    start.model.save(tmp_path / "again", start.tokenizer)
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    close(torch.as_tensor(again.encode(SENTENCES)), expected)
    assert again.max_seq_length == (limit or 40)
    kinds = [type(module).__name__ for module in again]
    assert kinds == [type(module).__name__ for module in SentenceTransformer(str(tmp_path / "m"), device="cpu")]


def test_a_limit_in_the_place_of_older_releases_counts(tiny_bert, tmp_path):
    st_model(tmp_path / "m", tiny_bert)
    file = tmp_path / "m" / "sentence_bert_config.json"
    file.write_text(json.dumps({"max_seq_length": 8, "do_lower_case": False}))
    expected = torch.as_tensor(SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(SENTENCES))
    start = load_start(str(tmp_path / "m"), TextSettings())
    close(start.model.encode(SENTENCES, start.tokenizer), expected)
    start.model.save(tmp_path / "again", start.tokenizer)
    assert SentenceTransformer(str(tmp_path / "again"), device="cpu").max_seq_length == 8


def test_weights_of_older_releases_are_read(tiny_bert, tmp_path):
    expected = st_model(tmp_path / "m", tiny_bert, more=(Dense,))
    weights = tmp_path / "m" / "2_Dense" / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    start = load_start(str(tmp_path / "m"), TextSettings())
    close(start.model.encode(SENTENCES, start.tokenizer), expected)


def test_the_program_trains_further(flags, tiny_bert, tmp_path, capsys):
    expected = st_model(tmp_path / "m", tiny_bert, more=(Dense, Normalize), limit=20)
    given = [*flags, f"--model_name_or_path={tmp_path / 'm'}", "--max_seq_length=16"]
    assert main([*given, "--learning_rate=1e-30"]) == 0
    printed = capsys.readouterr().out
    assert "sentence-transformers model: pooling avg, a head, normalised vectors, at most 20 tokens" in printed
    assert "the head starts as the model's own and is kept" in printed
    out = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    close(torch.as_tensor(out.encode(SENTENCES)), expected)
    assert out.max_seq_length == 20
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["settings"]["pooler_type"] == "avg"
    assert record["untrained"]["avg"] == pytest.approx(record["trained"], abs=1e-3)  # what it was is behind its head
    before, after = (record["similarities"][when] for when in ("before", "after"))
    assert np.abs(np.subtract(before["random"], after["random"])).max() < 1
    card = (tmp_path / "out" / "README.md").read_text()
    assert "then a dense layer with tanh. The vectors have length 1." in card
    assert main([*given, "--overwrite_output_dir", "--preset=small", "--max_steps=2"]) == 0
    moved = torch.as_tensor(SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(SENTENCES))
    assert (moved - expected).abs().max() > 1e-3


def test_a_pooler_that_is_given_must_be_the_models(flags, tiny_bert, tmp_path, capsys):
    st_model(tmp_path / "m", tiny_bert)
    given = [*flags, f"--model_name_or_path={tmp_path / 'm'}", "--max_steps=2"]
    for option in (["--pooler_type=cls"], ["--pooler-type", "cls"]):
        assert main([*given, *option]) == 2
        assert "--pooler_type: cls was given, but this sentence-transformers model has avg" in capsys.readouterr().err
    file = tmp_path / "settings.yaml"
    file.write_text("pooler_type: avg_top2\n")
    assert main([str(file), *given]) == 2
    assert "--pooler_type: avg_top2 was given" in capsys.readouterr().err
    assert main([*given, "--pooler_type=avg"]) == 0
    st_model(tmp_path / "first", tiny_bert, "cls")
    for name in ("cls", "cls_before_pooler"):  # saved as one
        start = load_start(str(tmp_path / "first"), TextSettings(pooler_type=name), {"pooler_type"})
        assert start.model.pooler_type == name


def change(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def test_what_cannot_be_kept_is_refused(tiny_bert, tmp_path):
    def refused(said, text=None, **kwargs):
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
        st_model(tmp_path / "m", tiny_bert, **kwargs)
        fails(said, text)

    def fails(said, text=None):
        with pytest.raises(UserError, match=said) as caught:
            load_start(str(tmp_path / "m"), text or TextSettings())
        assert "\n" not in str(caught.value)

    refused("pooling 'max' is that of no pooler", pooling="max")
    refused("pooling 'lasttoken' is that of no pooler", pooling="lasttoken")
    refused("is that of no pooler", pooling=("cls", "mean"))
    refused("its modules are Transformer, Pooling, Dense, Dense", more=(Dense, Dense))
    refused("its modules are Transformer, Pooling, LayerNorm", more=(lambda: LayerNorm(16),))
    refused("its modules are Transformer, Pooling, Normalize, Dense", more=(Normalize, Dense))
    refused("Dense has out_features 8", more=(lambda: Dense(16, 8),))
    refused("Dense has activation_function 'Identity'", more=(lambda: Dense(16, 16, activation_function=None),))
    refused("Dense has bias False", more=(lambda: Dense(16, 16, bias=False),))
    refused("Dense has use_residual True", more=(lambda: Dense(16, 16, use_residual=True),))
    refused("similarity_fn_name 'dot'", similarity_fn_name="dot")
    refused("is that of no pooler", layers=(0, 2))
    refused("--mlp_head no: this model has a head", TextSettings(mlp_head=False), more=(Dense,))
    refused("--mlp_only_train no: there is no head", TextSettings(mlp_only_train=False))
    settings = tmp_path / "m" / "config_sentence_transformers.json"
    change(settings, prompts={"query": "a cat: "}, default_prompt_name="query")
    fails("default_prompt_name 'query', which is not supported")
    change(settings, default_prompt_name=None)
    change(tmp_path / "m" / "sentence_bert_config.json", do_lower_case=True)
    fails("do_lower_case True, which is not supported")
    modules = tmp_path / "m" / "modules.json"
    modules.write_text(modules.read_text().replace('"path": ""', '"path": "0_Transformer"'))
    fails("names a path outside the folder")
