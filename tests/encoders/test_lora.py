"""LoRA: what trains, the merged model, the packed pass, checkpoints, and what peft reads."""

import json

import numpy as np
import pytest
import torch
from accelerate.utils import set_seed
from conftest import build_tokenizer, build_transformer, make_sentences, reset_accelerator
from peft import LoraConfig, PeftModel, get_peft_model
from processes import spawn
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from dystress_text.cli import extras
from dystress_text.core import InfoNCELoss
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.lora import add_lora, merged, save_adapter
from dystress_text.encoders.saved_model import load_saved
from dystress_text.errors import UserError
from dystress_text.simcse.corpus import TextFile, load_corpus
from dystress_text.simcse.settings import TextSettings
from dystress_text.simcse.start import load_start
from dystress_text.simcse.task import SimcseTask
from dystress_text.train import main
from dystress_text.training.accelerator import gather_of, make_accelerator
from dystress_text.training.settings import EngineSettings
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer

SENTENCES = make_sentences(8)
LORA = ["--lora_rank=4", "--learning_rate=1e-2"]


def trained_adapters(family="bert", pooler="cls", **options):
    """An encoder whose adapters are far from where they start."""
    encoder = SentenceEncoder(build_transformer(family), pooler, True, keep_head=True)
    torch.manual_seed(1)
    adapted = add_lora(encoder.transformer, 3, **options)
    encoder.adapt(adapted)
    for name, parameter in encoder.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return encoder, adapted


def batch(tokenizer):
    encoded = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    return encoded["input_ids"][encoded["attention_mask"].bool()], encoded["attention_mask"]


@pytest.mark.parametrize(
    ("family", "targets", "layers"),
    [("bert", None, ("query", "value")), ("roberta", None, ("query", "value")),
     ("distilbert", ["q_lin", "k_lin", "v_lin", "out_lin"], ("q_lin", "k_lin", "v_lin", "out_lin")),
     ("mpnet", ["attn.q", "attn.k"], ("q", "k")), ("modernbert", ["Wqkv", "Wo"], ("Wqkv", "Wo")),
     ("bert", ["query", "key", "value", "dense"], ("query", "key", "value", "dense"))],
)  # fmt: skip
def test_merging_gives_the_adapters_vectors(family, targets, layers, tmp_path, tokenizer):
    encoder, _ = trained_adapters(family, target_modules=targets)
    found = {name.split(".lora_A")[0].rsplit(".", 1)[-1] for name, _ in encoder.named_parameters() if ".lora_A" in name}
    assert found == set(layers)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    expected = encoder.encode(SENTENCES, tokenizer)
    bare = SentenceEncoder(build_transformer(family), "cls", False).encode(SENTENCES, tokenizer)
    assert (encoder.encode_by_pooler(SENTENCES, tokenizer, ["cls"])["cls"] - bare).abs().max() > 1e-2
    encoder.save(tmp_path, tokenizer)
    vectors = SentenceTransformer(str(tmp_path), device="cpu").encode(SENTENCES, convert_to_tensor=True)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-5)
    own, its_tokenizer = load_saved(tmp_path)
    torch.testing.assert_close(own.encode(SENTENCES, its_tokenizer), expected, rtol=0, atol=1e-5)
    assert not any("lora" in name for name in load_file(tmp_path / "model.safetensors"))
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())  # it trains on


def test_the_merged_weight_is_the_formula():
    """W + alpha / rank * B A, in fp64."""
    encoder, adapted = trained_adapters(alpha=5.0)
    layer = encoder.transformer.encoder.layer[1].attention.self.query
    a, b = (getattr(layer, f"lora_{name}")["default"].weight.detach().double().numpy() for name in "AB")
    expected = layer.get_base_layer().weight.detach().double().numpy() + 5.0 / 3 * b @ a
    found = merged(adapted).encoder.layer[1].attention.self.query.weight.detach()
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)


def test_alpha_is_twice_the_rank_unless_given():
    assert add_lora(build_transformer("bert"), 4).peft_config["default"].lora_alpha == 8
    assert add_lora(build_transformer("bert"), 4, 6.0).peft_config["default"].lora_alpha == 6


@pytest.mark.parametrize(("family", "pooler"), [("bert", "cls"), ("bert", "avg_first_last"), ("roberta", "avg")])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_packed_pass_sees_the_adapters(family, pooler, bf16, tokenizer):
    """Vectors and gradients of the packed pass are those of transformers' own; dropout is off."""
    targets = ["query", "key", "value", "dense"]
    encoder, _ = trained_adapters(family, pooler, target_modules=targets)
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    encoder.train()
    ids, mask = batch(tokenizer)
    weights = torch.randn(len(SENTENCES), 16, generator=torch.Generator().manual_seed(2))
    results = []
    for packed in (False, True):
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            vectors = encoder(ids, mask, packed)
        (vectors.float() * weights).sum().backward()
        gradients = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}
        results.append((vectors.detach().float(), gradients))
    (plain, plain_gradients), (packed, packed_gradients) = results
    torch.testing.assert_close(packed, plain, rtol=0, atol=0.1 if bf16 else 1e-5)
    assert plain_gradients.keys() == packed_gradients.keys()
    assert all("lora_" in name or name.startswith("head.") for name in plain_gradients)
    if not bf16:
        for name, gradient in plain_gradients.items():
            torch.testing.assert_close(packed_gradients[name], gradient, rtol=1e-3, atol=1e-4)


def test_adapters_and_the_head_train_alone(tiny_bert):
    start = load_start(str(tiny_bert), TextSettings(lora_rank=4))
    trained = {name: p for name, p in start.model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name or name.startswith("head.") for name in trained)
    count = 3 * 2 * 2 * 4 * 16 + 16 * 16 + 16  # layers, query and value, A and B; the head
    assert start.about["parameters"]["trained"] == sum(p.numel() for p in trained.values()) == count
    base = sum(p.numel() for p in AutoModel.from_pretrained(tiny_bert).parameters())
    assert start.about["parameters"]["all"] == base + count
    assert f"LoRA: {count:,} of {base + count:,} parameters train" in start.notes
    own = AutoModel.from_pretrained(tiny_bert).state_dict()
    assert all(torch.equal(merged(start.model._adapted[0]).state_dict()[name], own[name]) for name in own)


def test_a_run_trains_adapters_and_leaves_an_ordinary_model(flags, tiny_bert, tmp_path, capsys):
    assert main([*flags, *LORA, "--lora_dropout=0.1", "--merge_lora=no"]) == 0
    out = tmp_path / "out"
    assert "parameters train" in capsys.readouterr().out
    old, new = load_file(tiny_bert / "model.safetensors"), load_file(out / "model.safetensors")
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed == {f"encoder.layer.{i}.attention.self.{k}.weight" for i in range(3) for k in ("query", "value")}
    # peft puts the adapter onto the base, and plain transformers computes the model's vectors with it
    adapted = PeftModel.from_pretrained(AutoModel.from_pretrained(tiny_bert), str(out / "adapter")).eval()
    encoded = build_tokenizer()(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        first = adapted(**encoded).last_hidden_state[:, 0]
    vectors = SentenceTransformer(str(out), device="cpu").encode(SENTENCES, convert_to_tensor=True)
    torch.testing.assert_close(vectors, first, rtol=0, atol=1e-5)
    assert sorted(path.name for path in (out / "adapter").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    assert (
        json.loads((out / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == tiny_bert.name
    )
    card = (out / "README.md").read_text()
    assert "LoRA adapters of rank 4, " in card
    assert "the adapters' own files are in `adapter/`" in card
    assert "| LoRA | rank 4, dropout 0.1 |" in card
    assert main([*flags, *LORA, "--overwrite_output_dir"]) == 0
    assert not (out / "adapter").exists()


def test_a_run_that_goes_on_ends_as_one_that_was_never_interrupted(flags, tmp_path, capsys):
    whole = [*flags, *LORA, "--mlp_only_train=no", "--save_steps=4", "--lora_dropout=0.2", "--eval_set=none"]
    assert main(whole) == 0
    expected = (tmp_path / "out" / "model.safetensors").read_bytes()
    head = (tmp_path / "out" / "2_Dense" / "model.safetensors").read_bytes()
    (tmp_path / "out" / "model.safetensors").unlink()
    assert main([*whole, "--resume_from_checkpoint"]) == 0  # steps 5 and 6 once more
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == expected
    assert (tmp_path / "out" / "2_Dense" / "model.safetensors").read_bytes() == head
    assert main([*whole, "--resume_from_checkpoint", "--lora_rank=2"]) == 2
    assert "lora_rank was 4, is 2" in capsys.readouterr().err


@pytest.mark.parametrize("more", [("--mixed_precision=bf16",), ("--grad_cache_chunk=2",), ("--packing=no",)])
def test_the_loops_other_ways(more, flags, tmp_path):
    assert main([*flags, *LORA, *more]) == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["steps"] == 6
    assert 0 < record["parameters"]["trained"] < record["parameters"]["all"]


class Product(ContrastiveLoss):
    def forward(self, a, b, ids=None, samples=None):
        return (a * b).sum()


def test_a_gradient_step_is_pefts_own(tiny_bert, corpus, tokenizer):
    """One step of plain SGD on a plain peft model, without any of our layers, moves the adapters as ours does."""
    rows = np.array([3, 1, 4, 15])
    ours = load_start(str(tiny_bert), TextSettings(lora_rank=2, dropout=0.0, mlp_head=False)).model.train()
    task = SimcseTask(ours, tokenizer, corpus, Product(0.05))
    task.loss(task.embed(ours, task.load(rows, 0))).backward()
    plain = AutoModel.from_pretrained(tiny_bert, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    plain = get_peft_model(plain, LoraConfig(r=2, lora_alpha=4))
    own = {name: p for name, p in ours.transformer.named_parameters() if ".lora_" in name}
    with torch.no_grad():
        for name, parameter in plain.base_model.model.named_parameters():
            if name in own:
                parameter.copy_(own[name])
    loaded = task.load(rows, 0)
    mask = loaded["attention_mask"]
    ids = torch.zeros_like(mask).masked_scatter(mask.bool(), loaded["token_ids"])
    vectors = plain.train()(ids, attention_mask=mask).last_hidden_state[:, 0]
    (vectors * vectors).sum().backward()
    for name, parameter in plain.base_model.model.named_parameters():
        if name in own and own[name].grad is not None:
            torch.testing.assert_close(own[name].grad, parameter.grad, rtol=1e-3, atol=1e-5)
    assert sum(p.grad is not None for p in own.values()) == len(own) == 12


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--lora_alpha=4"], "--lora_alpha: has no effect without --lora_rank"),
     (["--merge_lora=no"], "--merge_lora: has no effect without --lora_rank"),
     (["--lora_rank=0"], "--lora_rank: must be at least 1"),
     (["--lora_rank=2", "--lora_alpha=0"], "--lora_alpha: must be positive"),
     (["--lora_rank=2", "--lora_dropout=1"], "--lora_dropout: must lie in [0, 1)"),
     (["--lora_rank=2", "lora_target_modules", "nope"], "lora_target_modules: give the names of linear layers"),
     (["--lora_rank=2", "lora_target_modules", "word_embeddings"], "word_embeddings is not a linear layer")],
)  # fmt: skip
def test_options_that_do_not_fit(options, said, flags, tmp_path, capsys):
    assert main([*flags, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


def test_an_encoder_that_peft_does_not_know_wants_names():
    with pytest.raises(UserError, match="lora_target_modules: give the names"):
        add_lora(build_transformer("mpnet"), 2)


def test_without_peft_the_install_is_named(flags, capsys, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert main([*flags, "--lora_rank=2"]) == 2
    assert "--lora_rank needs peft: pip install 'dystress-text[lora]'" in capsys.readouterr().err


def test_the_adapter_is_read_back_by_peft(tmp_path):
    _, adapted = trained_adapters()
    save_adapter(adapted, tmp_path)
    again = PeftModel.from_pretrained(build_transformer("bert"), str(tmp_path))
    own = dict(adapted.named_parameters())
    assert all(torch.equal(p, own[name]) for name, p in again.named_parameters() if "lora_" in name)


def train_in_processes(folder, text, tiny_bert):
    """A run of 8 steps without dropout; leaves the saved model in the folder."""
    settings = EngineSettings(
        output_dir=str(folder), max_steps=8, train_batch_size=8, learning_rate=1e-2, mixed_precision="no", eval_steps=4
    )
    accelerator = make_accelerator(settings)
    folder.mkdir(exist_ok=True)
    start = load_start(str(tiny_bert), TextSettings(lora_rank=4, dropout=0.0, mlp_head=False))
    corpus = load_corpus(TextFile(text), start.tokenizer, 16, progress=False)
    objective = InfoNCELoss(0.05, gather=gather_of(accelerator))
    task = SimcseTask(start.model, start.tokenizer, corpus, objective)
    trainer = Trainer(Run(task=task, samples=len(corpus)), settings, accelerator)
    trainer.fit()
    trainer.model = start.model
    accelerator.free_memory()
    reset_accelerator()


@pytest.mark.slow
def test_several_processes_train_the_same_adapters(tiny_bert, text_file, tmp_path):
    set_seed(1)
    train_in_processes(tmp_path / "one", text_file, tiny_bert)
    spawn(2, seeded, tmp_path / "two", text_file, tiny_bert)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    base = load_file(tiny_bert / "model.safetensors")
    moved = [name for name in base if not torch.equal(one[name], base[name])]
    assert len(moved) == 6
    for name in base:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-4 if name in moved else 0)
        assert name not in moved or (one[name] - base[name]).abs().max() > 1e-2


def seeded(*arguments):
    set_seed(1)
    train_in_processes(*arguments)
