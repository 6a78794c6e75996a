"""The README's code runs as printed, and its commands are the ones that are tested."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dystress_text import sweep
from dystress_text.report import __main__ as report

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_losses_and_the_own_temperature_run_as_printed():
    snippets = [block for block in blocks("python") if "SentenceTransformer" not in block]
    assert len(snippets) == 2
    snippets[1] += "\nfrom dystress_text import make_temperature\n"
    snippets[1] += "assert torch.allclose(make_temperature('quadratic', tau_max=0.1)(torch.ones(2)), torch.tensor(0.1))"
    for code in snippets:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_commands_install_the_tested_set():
    installs = [line for block in blocks("bash") for line in block.splitlines() if "pip install" in line]
    assert len(installs) == 5
    assert all("-c constraints.txt" in line for line in installs)
    pins = (ROOT / "constraints.txt").read_text()
    assert "torch==2.13.0" in pins.split()


@pytest.mark.slow
def test_options_that_the_readme_names_exist():
    programs = (
        "dystress_text/train.py",
        "dystress_text/export.py",
        "eval/senteval.py",
        "data/prepare.py",
        "vision/train.py",
        "vision/evaluate.py",
        "dystress_text/search.py build",
        "dystress_text/search.py add",
        "dystress_text/search.py query",
        "dystress_text/demo.py",
    )
    started = [
        subprocess.Popen([sys.executable, *program.split(), "--help"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for program in programs
    ]
    help_text = "".join(process.communicate()[0] for process in started)
    help_text += sweep.make_parser().format_help() + report.make_parser().format_help()
    named = set(re.findall(r"(?<![\w-])--[a-z_]+", README)) - {"--nproc_per_node", "--dist"}  # torchrun's and pytest's
    assert {option for option in named if option not in help_text} == set()


def test_importing_the_package_is_light():
    code = "import dystress_text, sys; print([m for m in ('transformers', 'accelerate', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("folder", ["dystress_text", "eval", "vision", "tests", "docs", ".ci", "README.md"])
def test_no_path_of_a_machine(folder):
    files = [ROOT / folder] if (ROOT / folder).is_file() else (ROOT / folder).rglob("*")
    texts = [f.read_text() for f in files if f.suffix in {".py", ".md", "", ".txt"} and f.is_file()]
    assert not any("/wo" + "rk/" in text or "/ro" + "ot/" in text for text in texts)
