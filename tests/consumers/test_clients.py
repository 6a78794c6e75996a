"""The lines of docs/consumers.md are those that were run, and the clients that are here read models
of every kind.
"""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "consumers" / "clients.py"
PAGE = (ROOT / "docs" / "consumers.md").read_text(encoding="utf-8")


def lines_to_copy():
    """Those of Python between the headings, without their remarks, as the script would have them."""
    section = PAGE.partition("## Lines to copy")[2].partition("\n## ")[0]
    for block in section.split("```python\n")[1:]:
        for line in block.partition("```")[0].splitlines():
            if code := line.partition("#")[0].strip():
                yield ast.unparse(
                    ast.parse(code.replace('"out-onnx"', "model").replace('"out"', "model"))
                ).strip("()")


def test_the_lines_of_the_page_are_in_the_script_that_ran_them():
    run = ast.unparse(ast.parse(SCRIPT.read_text(encoding="utf-8")))
    lines = list(lines_to_copy())
    assert len(lines) > 15
    assert [line for line in lines if line not in run] == []


def test_a_client_that_is_wrong_without_a_word_is_told(tmp_path):
    spec = importlib.util.spec_from_file_location("clients", SCRIPT)
    clients = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(clients)
    texts = [f"text {i}" for i in range(60)]
    vectors = clients.np.random.default_rng(0).standard_normal((60, 4)).tolist()
    (tmp_path / "native" / "avg").mkdir(parents=True)
    (tmp_path / "expected.json").write_text(
        json.dumps({"sentences": texts, "vectors": {"avg": vectors}})
    )
    off = [[x + 0.01 for x in vector] for vector in vectors]
    for read, good in ((vectors, True), (off, False)):
        clients.READERS["pytest"] = ("pytest", "native", lambda model, texts, read=read: read)
        assert clients.read(tmp_path, "pytest") == good
    clients.STORES["pytest"] = (
        "pytest",
        "native",
        lambda model, texts, queries: [0] * len(queries),
    )
    del clients.READERS["pytest"]
    assert not clients.read(tmp_path, "pytest")


@pytest.mark.slow(80)
def test_the_clients_that_are_here_read_models_of_every_kind(tmp_path):
    def script(*words):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    script("save", str(tmp_path / "models"), "avg", "first-last", "cls-head", "static", "decoder")
    lines = script(
        "read", str(tmp_path / "models"), "sentence-transformers", "transformers", "onnxruntime"
    )
    found = [json.loads(line) for line in lines.splitlines() if line[:1] == "{"]
    assert len(found) == 5 + 4 + 5  # transformers alone has no table
    assert [line for line in found if "error" in line or not line["right"]] == []
    assert max(line["difference"] for line in found) < 2e-6
