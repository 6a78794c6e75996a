"""The README's code runs as printed, and its commands are the ones that are tested."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dystress_text import demo, figures, senteval, sweep, train
from dystress_text.core import registry
from dystress_text.export import __main__ as export
from dystress_text.preparation import __main__ as preparation
from dystress_text.report import __main__ as report
from dystress_text.search import __main__ as search
from vision import evaluate
from vision import export as export_images
from vision import train as pretrain

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_losses_and_the_own_temperature_run_as_printed(monkeypatch):
    monkeypatch.setattr(registry, "TEMPERATURES", dict(registry.TEMPERATURES))
    snippets = [block for block in blocks("python") if "SentenceTransformer" not in block]
    assert len(snippets) == 2
    snippets[1] += "\nfrom dystress_text import make_temperature\n"
    snippets[1] += "assert torch.allclose(make_temperature('quadratic', tau_max=0.1)(torch.ones(2)), torch.tensor(0.1))"
    for code in snippets:
        exec(code, {"__name__": "snippet"})


def test_commands_install_the_tested_set():
    installs = [line for block in blocks("bash") for line in block.splitlines() if "pip install" in line]
    assert len(installs) == 5
    assert all("-c constraints.txt" in line for line in installs)
    pins = (ROOT / "constraints.txt").read_text()
    assert "torch==2.13.0" in pins.split()


PROGRAMS = [  # their entries, and the commands within them
    (train.main,), (senteval.main,), (preparation.main,), (export.main,), (report.main,), (demo.main,), (sweep.main,),
    (search.main, "build", "add", "query"), (figures.main,), (pretrain.main,), (evaluate.main,), (export_images.main,),
]  # fmt: skip


def help_of(main, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_options_that_the_readme_names_exist(capsys):
    asked = [(main, words) for main, *parts in PROGRAMS for words in ([], *([part] for part in parts))]
    help_text = "".join(help_of(main, words, capsys) for main, words in asked)
    named = set(re.findall(r"(?<![\w-])--[a-z_]+", README)) - {"--nproc_per_node", "--dist"}  # torchrun's and pytest's
    assert {option for option in named if option not in help_text} == set()


def test_a_program_shows_its_help():
    """One of those that hand on to the package, in a process of its own."""
    done = subprocess.run([sys.executable, "data/prepare.py", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: dystress prepare")


def test_importing_the_package_is_light():
    code = "import dystress_text, sys; print([m for m in ('transformers', 'accelerate', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("folder", ["dystress_text", "eval", "vision", "tests", "docs", ".ci", "README.md"])
def test_no_path_of_a_machine(folder):
    files = [ROOT / folder] if (ROOT / folder).is_file() else (ROOT / folder).rglob("*")
    texts = [f.read_text() for f in files if f.suffix in {".py", ".md", "", ".txt"} and f.is_file()]
    assert not any("/wo" + "rk/" in text or "/ro" + "ot/" in text for text in texts)
