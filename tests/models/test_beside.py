"""Words beside a model: one saved model of both, which loads without this package, and one graph of
both.
"""

import hashlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from model_cases import build_model
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router, StaticEmbedding
from torch.nn.functional import normalize
from transformers import AutoTokenizer

from dystress_text.evaluation.embedder import load_model
from dystress_text.models.embedder import save_model
from dystress_text.models.loading import load_sentence_transformer
from dystress_text.programs.export import main as export
from dystress_text.programs.senteval import main as senteval
from dystress_text.programs.train import main

TEXTS = [
    *make_sentences(9),
    "",
    " ".join(["cat dog"] * 60),
]  # the last one is longer than the 40 positions
PLAIN = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dystress_text":
            raise ImportError(name)
sys.meta_path.insert(0, Without())
import numpy, json
from sentence_transformers import SentenceTransformer
folder, texts, file, again = sys.argv[1:]
model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
numpy.save(file, model.encode(json.loads(texts)))
model.save(again)
numpy.testing.assert_array_equal(
    SentenceTransformer(again, trust_remote_code=True, device="cpu").encode(json.loads(texts)), numpy.load(file)
)
"""


def router():
    parts = [
        StaticEmbedding(build_tokenizer().backend_tokenizer, embedding_dim=8) for _ in range(2)
    ]
    return SentenceTransformer(
        modules=[Router.for_query_document(*([part] for part in parts))], device="cpu"
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of models to stand beside, by kind."""
    place = tmp_path_factory.mktemp("models")
    save_model(build_model("bert", "avg", normalize=True), place / "bert")
    prompts = {"query": "the cat saw ", "other": "red house "}
    bert = SentenceTransformer(
        str(place / "bert"), device="cpu", prompts=prompts, default_prompt_name="other"
    )
    bert.save(str(place / "prompts"), create_model_card=False)
    static = StaticEmbedding(build_tokenizer().backend_tokenizer, embedding_dim=8)
    SentenceTransformer(modules=[static], device="cpu").save(
        str(place / "static"), create_model_card=False
    )
    router().save(str(place / "router"), create_model_card=False)
    build_transformer("bert").save_pretrained(place / "alone")
    (place / "damaged").mkdir()
    (place / "damaged" / "modules.json").write_text("[{")
    return place


@pytest.fixture(scope="module")
def train(models, text_file, tmp_path_factory):
    """Train beside a kind of model; returns the folder and the exit code."""
    made = {}

    def run(kind, *more):
        if (kind, *more) not in made:
            out = tmp_path_factory.mktemp("beside") / "out"
            options = [
                "--model_name_or_path=static", "--dim=16", "--views=crop", f"--train_file={text_file}", "--max_steps=6",
                "--train_batch_size=8", "--mixed_precision=no", "--learning_rate=1e-2", "--eval_set=none",
                "--pooler_type=avg", f"--output_dir={out}", *([f"--beside={models / kind}"] if kind else []), *more,
            ]  # fmt: skip
            made[kind, *more] = out, main(options)
        return made[kind, *more]

    return run


def weights_of(folder):
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.glob("*.safetensors")
    }


@pytest.mark.parametrize("kind", ["bert", "prompts", "static"])
def test_the_saved_model_has_both_vectors_and_loads_without_this_package(
    kind, train, models, tmp_path
):
    folder, code = train(kind)
    assert code == 0
    assert weights_of(folder / "model") == weights_of(models / kind) != {}
    command = [
        sys.executable,
        "-I",
        "-c",
        PLAIN,
        folder,
        json.dumps(TEXTS),
        tmp_path / "v.npy",
        tmp_path / "again",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    vectors = torch.from_numpy(np.load(tmp_path / "v.npy"))
    model = SentenceTransformer(str(models / kind), device="cpu")
    own = normalize(model.encode(TEXTS, convert_to_tensor=True), dim=1)
    module = load_sentence_transformer(str(folder), "cpu")[0]
    ids = [encoding.ids for encoding in module.words.encode_batch(TEXTS)]  # of the whole texts
    words = normalize(torch.stack([module.table.weight[of_text].sum(0) for of_text in ids]), dim=1)
    both = normalize(torch.cat([own, 0.7 * words], 1), dim=1).detach()
    torch.testing.assert_close(vectors, both, rtol=0, atol=1e-6)
    embed, _ = load_model(str(folder), None)
    torch.testing.assert_close(embed(TEXTS), both, rtol=0, atol=1e-6)
    card = (folder / "README.md").read_text()
    assert f"first {own.shape[1]} of {kind}" in card
    assert "trust_remote_code=True" in card


def test_an_evaluated_base_leaves_the_run_its_page(models, text_file, tmp_path, capsys):
    """The folder of the base may be a run's, with its results and a user's files."""
    base = shutil.copytree(models / "bert", tmp_path / "base")
    assert senteval([f"--model={base}", "--tasks=MiniSTS", "--suite=mini"]) == 0
    weights = load_file(base / "model.safetensors")
    torch.save(weights, base / "pytorch_model.bin")  # not read beside safetensors
    for name in ("run.json", "notes.txt", "data_config.json", "1_Pooling/notes.txt"):
        (base / name).write_text("{}")
    out = tmp_path / "out"
    options = [
        "--model_name_or_path=static", "--dim=16", "--views=crop", f"--train_file={text_file}", "--max_steps=2",
        "--train_batch_size=8", "--eval_set=none", "--pooler_type=avg", f"--beside={base}", f"--output_dir={out}",
    ]  # fmt: skip
    assert main(options) == 0
    copied, read = (
        {str(file.relative_to(folder)) for file in folder.rglob("*.*") if file.is_file()}
        for folder in (out / "model", models / "bert")
    )
    assert copied == read
    assert (out / "report.html").is_file()


def test_the_table_trains_as_without_the_model(train):
    own = "--vocabulary=embedded"
    alone = SentenceTransformer(str(train(None, own)[0]), device="cpu")
    beside = load_sentence_transformer(str(train("bert", own)[0]), "cpu")
    assert torch.equal(alone[0].embedding.weight, beside[0].table.weight)


def test_words_are_without_the_models_prompts(train):
    model = load_sentence_transformer(str(train("prompts")[0]), "cpu")
    assert model.prompts["query"] == "the cat saw "
    words = [
        model.encode("a dog ran", prompt=prompt)[-16:] for prompt in ("", "the cat saw ", None)
    ]
    for other in words[1:]:
        np.testing.assert_allclose(other, words[0], atol=1e-6)


@pytest.mark.slow
def test_one_graph_gives_both_vectors(train, tmp_path):
    import onnxruntime

    folder, _ = train("bert")
    assert export([str(folder), "--to=onnx", f"--output={tmp_path / 'graph'}"]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "graph")
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="np")
    assert batch["input_ids"].shape[1] > 100  # the model reads 40, the table all
    session = onnxruntime.InferenceSession(tmp_path / "graph" / "onnx" / "model.onnx")
    inputs = {name: batch[name].astype("int64") for name in ("input_ids", "attention_mask")}
    (vectors,) = session.run(["sentence_embedding"], inputs)
    expected = load_sentence_transformer(str(folder), "cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=2e-6)


def test_what_a_layout_cannot_hold_is_refused(train, tmp_path, capsys):
    for kind, to, reason in (
        ("bert", "hf", "--to: "),
        ("prompts", "onnx", "--to: "),
    ):
        folder, _ = train(kind)
        capsys.readouterr()
        assert export([str(folder), f"--to={to}", f"--output={tmp_path / 'copy'}"]) == 2
        error = capsys.readouterr().err.strip()
        assert reason in error
        assert "\n" not in error
        assert not (tmp_path / "copy").exists()
    assert export([str(train("bert")[0]), "--to=native", f"--output={tmp_path / 'copy'}"]) == 0


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("router", "one encoder of all texts"), ("alone", "is no folder or name of a sentence-transformers model"),
     ("damaged", "cannot load"), ("nothing", "is no folder"), ("", "--dim: is of --model_name_or_path static")],
)  # fmt: skip
def test_a_model_that_cannot_be_used_is_refused_before_the_first_step(
    kind, reason, train, models, tiny_bert, capsys
):
    more = [] if kind else [f"--beside={models / 'bert'}", f"--model_name_or_path={tiny_bert}"]
    folder, code = train(kind, *more)
    error = capsys.readouterr().err.strip()
    assert code == 2
    if kind:
        assert "--beside: " in error
    assert reason in error
    assert "\n" not in error
    assert not (folder / "metrics.jsonl").exists()
