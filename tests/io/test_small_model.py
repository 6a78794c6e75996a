"""The small encoder by its name: every program takes it, from any folder, and nothing is written
into the package.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import make_sentences, reset_accelerator
from model_cases import build_static
from sentence_transformers import SentenceTransformer

import dystress_text as dt
from dystress_text import __main__ as dystress
from dystress_text.errors import UserError
from dystress_text.io.paths import EMBEDDED, PACKAGE
from dystress_text.models.loading import save_model

PAIRS = (
    "sentence1,sentence2,score\n"
    "It rains.,It pours.,4\nIt rains.,A cat sat.,1\nA dog ran.,A cat sat.,2\n"
)
TRAIN = [
    "--train_file=text.txt",
    "--max_steps=2",
    "--train_batch_size=8",
    "--eval_set=none",
    "--pooler_type=avg",
]


def files_of_the_package():
    files = (file for file in PACKAGE.rglob("*") if "__pycache__" not in file.parts)
    return {(file, file.stat().st_mtime_ns) for file in files}


@pytest.mark.parametrize("name", ["bert-mini-wiki", str(EMBEDDED / "bert-mini-wiki")])
def test_programs_take_it_and_write_where_they_are_called(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").write_text(PAIRS)
    (tmp_path / "text.txt").write_text("\n".join(make_sentences(40)))
    before = files_of_the_package()
    for words in (
        ["senteval", "--model", name, "--pooler_type=avg", "--pairs=pairs.csv"],
        ["train", f"--model_name_or_path={name}", *TRAIN],
        ["export", name, "--to=hf"],
    ):
        assert dystress.main(words) == 0, capsys.readouterr().err
        reset_accelerator()
    assert files_of_the_package() == before
    assert not list(tmp_path.glob("*.jsonl"))
    for card in ("out/README.md", "bert-mini-wiki-hf/README.md"):
        assert "license: apache-2.0" in (tmp_path / card).read_text()
    assert (
        json.loads((tmp_path / "out" / "run.json").read_text())["base_model"]["name"]
        == "bert-mini-wiki"
    )


def test_a_folder_of_its_name_is_named_as_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EMBEDDED / "bert-mini-wiki", tmp_path / "bert-mini-wiki")
    (tmp_path / "pairs.csv").write_text(PAIRS)
    given = ["senteval", "--pooler_type=avg", "--pairs=pairs.csv", "--model"]
    assert dystress.main([*given, "bert-mini-wiki"]) == 2
    assert "./bert-mini-wiki is the folder" in capsys.readouterr().err
    assert dystress.main([*given, "./bert-mini-wiki"]) == 0
    (tmp_path / "text.txt").write_text("\n".join(make_sentences(40)))
    assert dystress.main(["train", "--model_name_or_path=bert-mini-wiki", *TRAIN]) == 2
    assert (
        "--model_name_or_path: 'bert-mini-wiki' is the small encoder of the package and a folder"
        in (capsys.readouterr().err)
    )
    with pytest.raises(UserError, match=r"\./bert-mini-wiki is the folder"):
        dt.audit("bert-mini-wiki", make_sentences(8), "infonce(0.05)", batch_size=4)
    assert not (tmp_path / "bert-mini-wiki" / "results.jsonl").exists()  # no run's folder


def test_a_trained_model_of_its_name_is_the_one_that_is_copied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build_static()
    save_model(model, Path("bert-mini-wiki"))
    assert dystress.main(["export", "bert-mini-wiki", "--to=native"]) == 0
    copy = SentenceTransformer("bert-mini-wiki-native", device="cpu")
    assert torch.equal(copy[0].embedding.weight, model[0].embedding.weight)


def test_a_folder_called_static_is_no_new_table_where_it_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(make_sentences(40)))
    save_model(build_static(), Path("static"))
    words = ["train", "--preset=own-text", "--train_file=text.txt", "--max_steps=1"]
    assert dystress.main([*words, "--model_name_or_path=static"]) == 2
    assert (
        "'static' is a new table of word vectors and a folder; ./static is the folder"
        in capsys.readouterr().err
    )
    assert dystress.main([*words, "--model_name_or_path=./static", "--output_dir=further"]) == 0
    assert "word pieces of './static'" in capsys.readouterr().out
    reset_accelerator()
    assert dystress.main([*words, "--output_dir=new"]) == 0  # the preset's own table
    assert "1024 numbers each" in capsys.readouterr().out
