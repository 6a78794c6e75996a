"""The small encoder by its name; nothing is written into the package."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import make_sentences, reset_accelerator
from model_cases import build_static

from dystress_text import __main__ as dystress
from dystress_text.io.paths import EMBEDDED, PACKAGE
from dystress_text.models.loading import save_model

TRAIN = ["train", "--train_file=text.txt", "--max_steps=2", "--train_batch_size=8"]
TRAIN += ["--eval_set=none", "--pooler_type=avg"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(make_sentences(40)))


def package_files():
    files = (file for file in PACKAGE.rglob("*") if "__pycache__" not in file.parts)
    return {(file, file.stat().st_mtime_ns) for file in files}


@pytest.mark.parametrize("name", ["bert-mini-wiki", str(EMBEDDED / "bert-mini-wiki")])
def test_programs_write_to_the_current_folder(name):
    before = package_files()
    assert dystress.main([*TRAIN, f"--model_name_or_path={name}"]) == 0
    assert package_files() == before
    assert "license: apache-2.0" in Path("out/README.md").read_text()
    assert json.loads(Path("out/run.json").read_text())["base_model"]["name"] == "bert-mini-wiki"


def test_rejects_the_name_if_it_is_also_a_folder(capsys):
    shutil.copytree(EMBEDDED / "bert-mini-wiki", "bert-mini-wiki")
    assert dystress.main([*TRAIN, "--model_name_or_path=bert-mini-wiki"]) == 2
    assert "--model_name_or_path" in capsys.readouterr().err
    assert dystress.main([*TRAIN, "--model_name_or_path=./bert-mini-wiki"]) == 0


def test_static_is_a_new_table_unless_a_folder_is_named(capsys):
    save_model(build_static(), Path("static"))
    argv = ["train", "--preset=own-text", "--train_file=text.txt", "--max_steps=1"]
    assert dystress.main([*argv, "--model_name_or_path=static"]) == 2
    capsys.readouterr()
    assert dystress.main([*argv, "--model_name_or_path=./static", "--output_dir=further"]) == 0
    reset_accelerator()
    assert dystress.main([*argv, "--output_dir=new"]) == 0  # the preset's own table
