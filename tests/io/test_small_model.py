"""The small encoder by its name; nothing is written into the package."""

import json
from pathlib import Path

from conftest import make_sentences

from dystress_text import __main__ as dystress
from dystress_text.io.paths import EMBEDDED, PACKAGE


def package_files():
    files = (file for file in PACKAGE.rglob("*") if "__pycache__" not in file.parts)
    return {(file, file.stat().st_mtime_ns) for file in files}


def test_programs_write_to_the_current_folder(tmp_path, monkeypatch):
    name = "bert-mini-wiki"
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(make_sentences(16)))
    train = ["train", "--train_file=text.txt", "--max_steps=1", "--train_batch_size=8"]
    before = package_files()
    model = f"--model_name_or_path={EMBEDDED / name}"
    assert dystress.main([*train, model, "--eval_set=none"]) == 0
    assert package_files() == before
    assert "license: apache-2.0" in Path("out/README.md").read_text()
    assert json.loads(Path("out/run.json").read_text())["base_model"]["name"] == "bert-mini-wiki"
