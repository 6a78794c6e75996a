"""Runs, checkpoints, indexes, models and data of the code before its modules moved: all of them load as they did."""

import hashlib
import json
import lzma
import math
import runpy
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

import dystress_text
from dystress_text.search import SentenceIndex

ROOT = Path(__file__).resolve().parents[1]
FILES = Path(__file__).with_name("fixtures") / "before_rooms"
EXPECTED = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))
INDEXES = ("fp32", "fp16", "int8", "binary", "graph")
COMMAND = [
    "--model_name_or_path=base", "--train_file=sentences.txt", "--eval_set=mini_sts", "--max_steps=6",
    "--train_batch_size=16", "--mixed_precision=no", "--learning_rate=1e-3", "--eval_steps=2", "--logging_steps=1",
    "--pooler_type=avg", "--mlp_head=yes", "--mlp_only_train=no", "--log_similarity", "--save_steps=3",
    "--mask_duplicates=yes",  # the default preset's then
]  # fmt: skip
SHORT = [
    "--train_file=sentences.txt", "--eval_set=none", "--max_steps=1", "--train_batch_size=8", "--mixed_precision=no"
]  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A copy of the files as the working directory, since their paths are relative to it."""
    folder = tmp_path / "before"
    shutil.copytree(FILES, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def program(monkeypatch, capsys):
    """Runs a program as the command line does, in this process: its exit code and what it printed."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        start = partial(runpy.run_path, str(ROOT / name)) if name.endswith(".py") else partial(runpy.run_module, name)
        with pytest.raises(SystemExit) as end:
            start(run_name="__main__")
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return run


def lines_of(log):
    return [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]


def assert_alike(found, expected):
    """The same numbers but for rounding, and no time compared."""
    if isinstance(expected, dict):
        assert found.keys() - {"comparison"} == expected.keys()  # which logs have since then
        for name in expected.keys() - {"samples_per_second"}:
            assert_alike(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    else:
        assert found == expected


# ---- models and runs -------------------------------------------------------------------------------------------------


def test_a_model_gives_its_vectors():
    vectors = SentenceTransformer("run", device="cpu").encode(EXPECTED["queries"], convert_to_tensor=True)
    torch.testing.assert_close(vectors, torch.tensor(EXPECTED["vectors"]), rtol=0, atol=1e-5)


def test_an_interrupted_run_reaches_its_end(program):
    arguments = [*COMMAND, "--output_dir=interrupted", "--resume_from_checkpoint"]
    code, printed, _ = program("dystress_text/train.py", *arguments)
    assert code == 0
    assert "going on after step 3" in printed
    for name, checksum in EXPECTED["resumed_sha256"].items():
        tensors, whole = load_file(Path("interrupted") / name), load_file(Path("run") / name)
        assert tensors.keys() == whole.keys()
        for key in whole:
            torch.testing.assert_close(tensors[key], whole[key], rtol=0, atol=1e-5)
        here = (torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
        if here == (EXPECTED["torch"], EXPECTED["cpu_capability"], 1):  # elsewhere sums are rounded otherwise
            assert hashlib.sha256((Path("interrupted") / name).read_bytes()).hexdigest() == checksum
    for log in ("metrics.jsonl", "similarity.jsonl"):
        assert_alike(lines_of(f"interrupted/{log}"), lines_of(f"run/{log}"))
    record, whole = (json.loads(Path(f"{folder}/run.json").read_text()) for folder in ("interrupted", "run"))
    assert record.keys() - {"temperature_parameters", "paper"} == whole.keys()  # these two are younger
    for name in ("trained", "untrained", "best_step", "steps", "temperature", "corpus"):
        assert_alike(record[name], whole[name])


def test_another_run_does_not_go_on_from_a_checkpoint(program, place):
    before = {path: path.read_bytes() for path in (place / "interrupted").rglob("*") if path.is_file()}
    arguments = [*COMMAND, "--output_dir=interrupted", "--resume_from_checkpoint", "--seed=7", "--temp=0.05"]
    code, _, error = program("dystress_text/train.py", *arguments)
    assert code == 2
    assert "seed was 42, is 7" in error
    assert "temp was None, is 0.05" in error
    assert {path: path.read_bytes() for path in (place / "interrupted").rglob("*") if path.is_file()} == before


def test_a_damaged_checkpoint_is_seen(program):
    weights = Path("interrupted/checkpoint-3/optimizer.bin")
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    with pytest.warns(UserWarning, match="optimizer.bin"):
        code, _, error = program(
            "dystress_text/train.py", *COMMAND, "--output_dir=interrupted", "--resume_from_checkpoint"
        )
    assert code == 2
    assert "every checkpoint" in error


def test_a_run_is_overwritten_with_all_that_is_its_own(program):
    Path("run/mine.txt").write_text("the user's")
    arguments = ["--model_name_or_path=base", *SHORT, "--output_dir=run"]
    assert program("dystress_text/train.py", *arguments)[0] == 2
    assert Path("run/senteval-mini-test.json").is_file()
    assert program("dystress_text/train.py", *arguments, "--overwrite_output_dir")[0] == 0
    assert not Path("run/senteval-mini-test.json").exists()
    assert not Path("run/similarity.jsonl").exists()
    assert Path("run/mine.txt").read_text() == "the user's"


@pytest.mark.parametrize("model", ["run", "lora"])
def test_a_run_begins_with_a_model_of_before(model, program):
    assert program("dystress_text/train.py", f"--model_name_or_path={model}", *SHORT, "--output_dir=next")[0] == 0
    dense = json.loads(Path("next/modules.json").read_text())
    assert len(dense) == len(json.loads(Path(f"{model}/modules.json").read_text()))


def test_the_adapter_of_a_lora_run_is_its_model():
    peft = pytest.importorskip("peft")
    from transformers import AutoModel

    sentences = EXPECTED["queries"]
    whole = SentenceTransformer("lora", device="cpu")
    merged = peft.PeftModel.from_pretrained(AutoModel.from_pretrained("base"), "lora/adapter").merge_and_unload()
    vectors = whole.encode(sentences, convert_to_tensor=True)
    tokens = whole.tokenizer(sentences, return_tensors="pt", padding=True)
    merged.eval()
    pooled = merged(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
    mask = tokens["attention_mask"][..., None].float()
    mean = (pooled * mask).sum(1) / mask.sum(1)
    for module in list(whole)[2:]:  # the kept head
        mean = module({"sentence_embedding": mean})["sentence_embedding"]
    torch.testing.assert_close(vectors, mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", ["native", "legacy"])
def test_a_run_is_exported(layout, program):
    code, _, error = program("dystress_text.export", "run", "--to", layout, "--output", "copy")
    assert code == 0, error
    vectors = SentenceTransformer("copy", device="cpu").encode(EXPECTED["queries"], convert_to_tensor=True)
    torch.testing.assert_close(vectors, torch.tensor(EXPECTED["vectors"]), rtol=0, atol=1e-5)


# ---- what reads runs -------------------------------------------------------------------------------------------------


def test_an_evaluation_gives_the_figures_of_before(program):
    before = json.loads(Path("run/senteval-mini-test.json").read_text())
    code, _, _ = program(
        "eval/senteval.py", "--model=run", "--suite=mini", "--tasks", "MiniSTS", "MiniQuestions",
        "--output=again.json",
    )  # fmt: skip
    after = json.loads(Path("again.json").read_text())
    assert code == 0
    assert after.keys() == before.keys()
    for name in ("model", "suite", "mode", "asked", "complete", "left_out", "sha256"):
        assert after[name] == before[name]
    for name, task in before["tasks"].items():
        assert after["tasks"][name].keys() == task.keys()
        assert after["tasks"][name]["counts"] == task["counts"]
        assert after["tasks"][name]["sha256"] == task["sha256"]
    assert after["averages"] == pytest.approx(before["averages"], abs=0.02)
    assert after["geometry"]["spearman"] == pytest.approx(before["geometry"]["spearman"], abs=1e-3)


@pytest.mark.usefixtures("with_pictures")
def test_the_report_reads_runs_and_sweeps(program):
    code, printed, error = program("dystress_text.report", "run", "sweep", "--resamples=0")
    assert code == 0, error
    trained = json.loads(Path("run/run.json").read_text())["trained"]["mini_sts_spearman"]
    evaluated = json.loads(Path("run/senteval-mini-test.json").read_text())["averages"]
    assert all(f"{figure:.2f}" in printed for figure in (trained, *evaluated.values()))
    assert "grid-cosine-tau_min=0.03-tau_max=0.07" in printed
    code, page, error = program("dystress_text.report", "run", "--format=html")
    assert code == 0, error
    assert "<svg" in page or "<img" in page


def test_a_finished_sweep_is_known_as_done(program):
    arguments = [
        "--temperature=cosine", "--tau_min", "0.03", "0.05", "--tau_max", "0.07", "--seeds", "0", "--tasks", "none",
        "--output_dir=sweep", "--dry_run",
    ]  # fmt: skip
    own = [
        "--model_name_or_path", "base", "--train_file", "sentences.txt", "--eval_set", "mini_sts", "--max_steps", "2",
        "--train_batch_size", "8", "--mixed_precision", "no", "--mask_duplicates", "yes", "--learning_rate",
    ]  # fmt: skip
    code, printed, _ = program("dystress_text.sweep", *arguments, "--", *own, "1e-3")
    assert (code, printed.count(": done\n"), len(printed.splitlines())) == (0, 2, 2)
    code, printed, _ = program("dystress_text.sweep", *arguments, "--", *own, "1e-4")
    assert (code, printed.count("refused"), printed.count("learning_rate was 0.001, is 0.0001")) == (0, 2, 2)


def another(run):
    """A copy of a run with another constant temperature, as far as its record says."""
    folder = Path(f"{run}-constant")
    shutil.copytree(run, folder)
    record = json.loads((folder / "run.json").read_text())
    record["temperature"], record["settings"]["temp"] = "ConstantTemperature(tau=0.1)", 0.1
    (folder / "run.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(
    ("name", "runs"),
    [("training", ["run"]), ("accuracy-temperature", ["run"]), ("accuracy-geometry", ["vision"])],
)
def test_figures_are_drawn_from_runs(name, runs, program):
    pytest.importorskip("matplotlib")
    runs = [*runs, another(runs[0])]
    code, _, error = program("dystress_text.figures", name, *runs, "--output=figure.svg")
    assert code == 0, error
    assert Path("figure.svg").stat().st_size > 5_000


# ---- search ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", INDEXES)
def test_an_index_gives_its_answers(kind):
    model = SentenceTransformer("run", device="cpu")
    index = SentenceIndex.load(Path(f"index_{kind}"), model)
    for found, expected in zip(index.search(EXPECTED["queries"], top_k=4), EXPECTED["answers"][kind], strict=True):
        assert [match.row for match in found] == [match["row"] for match in expected["matches"]]
        assert [match.sentence for match in found] == [match["sentence"] for match in expected["matches"]]
        for match, other in zip(found, expected["matches"], strict=True):
            assert match.score == pytest.approx(other["score"], abs=1e-4)


@pytest.mark.parametrize("kind", INDEXES)
def test_an_index_takes_more_sentences(kind, program):
    code, _, error = program(
        "dystress_text.search", "add", "--model", "run", "--file", "more.txt", "--index", f"index_{kind}"
    )
    assert code == 0, error
    more = Path("more.txt").read_text().splitlines()
    code, printed, _ = program(
        "dystress_text.search", "query", "--model", "run", "--index", f"index_{kind}", "--json", "--top_k", "2",
        more[3], EXPECTED["queries"][0],
    )  # fmt: skip
    assert code == 0
    first, second = (json.loads(line)["matches"] for line in printed.splitlines())
    assert len(first) == len(second) == 2
    assert (first[0]["row"], first[0]["sentence"]) == (63, more[3])


def test_a_damaged_index_is_refused(program):
    vectors = Path("index_fp32/vectors.npy")
    vectors.write_bytes(vectors.read_bytes()[:-1])
    code, _, error = program("dystress_text.search", "query", "--model", "run", "--index", "index_fp32", "a text")
    assert code == 2
    assert len(error.splitlines()) == 1


# ---- data and images -------------------------------------------------------------------------------------------------


def test_prepared_data_are_read_with_what_they_are(program):
    code, printed, _ = program("data/prepare.py", "verify", "wiki1m", "--data_dir=prepared")
    assert (code, printed) == (0, "wiki1m: as prepared\n")
    assert "variant: thirty sentences" in program("data/prepare.py", "list", "--data_dir=prepared")[1]
    arguments = ["--model_name_or_path=base", *SHORT[1:], "--data_dir=prepared", "--output_dir=out"]
    code, printed, _ = program("dystress_text/train.py", *arguments)
    assert code == 0
    assert "not the published data but a variant: thirty sentences" in printed
    file = Path("prepared/wiki1m/wiki1m_for_simcse.txt")
    file.write_text(file.read_text() + "one more\n")
    assert program("data/prepare.py", "verify", "wiki1m", "--data_dir=prepared")[0] == 1


@pytest.fixture
def images_run():
    for packed in Path("vision").glob("*.safetensors.xz"):
        packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
    return Path("vision")


def test_an_image_encoder_gives_the_figures_of_before(images_run, program):
    before = json.loads((images_run / "vision-shapes.json").read_text())
    code, _, error = program(
        "vision/evaluate.py", "--model=vision", "--limit=200", "--k=5", "--l2_k", "1", "--tasks", "knn", "geometry",
        "--output=again.json",
    )  # fmt: skip
    after = json.loads(Path("again.json").read_text())
    assert code == 0, error
    assert after.keys() == before.keys()
    assert (after["encoders"], after["data"]) == (before["encoders"], before["data"])
    found, expected = after["results"]["vision"], before["results"]["vision"]
    for name, values in expected["knn"].items():
        if isinstance(values, dict):
            assert found["knn"][name]["top1"] == pytest.approx(values["top1"], abs=1.0)
    # alignment is left out: its views are crops of 0.08 to 1 of the area now, of 0.2 to 1 then
    for name in ("uniformity", "interclass_uniformity", "tolerance"):
        assert math.isclose(found["geometry"][name], expected["geometry"][name], rel_tol=1e-3)


def test_no_file_names_a_place_on_a_machine():
    places = [f"{place}/".encode() for place in (ROOT, tempfile.gettempdir())]
    for path in FILES.rglob("*"):
        if path.is_file() and path.suffix != ".xz":
            assert not any(place in path.read_bytes() for place in places), path


def test_the_public_names_are_there():
    names = {"InfoNCELoss", "NTXentLoss", "MACLLoss", "ConstantTemperature", "ShiftedCosineTemperature", "DySTreSSLoss"}
    assert names <= set(dystress_text.__all__)
    assert all(getattr(dystress_text, name) is not None for name in dystress_text.__all__)
