"""The documents: their commands parse, their snippets run, their links resolve.

- A comment before a block, ``<!-- needs: gpu, hub -->``, says that no test runs it, and why:
  ``gpu``, ``hub`` (downloads), ``hours`` (takes too long), ``package`` (not one of our
  dependencies). Its commands must parse all the same.
- The slow test runs all other blocks in one folder, in the order of the documents, with the small
  encoder and two steps.
"""

import csv
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import reset_accelerator

from dystress_text import __main__ as dystress
from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.finetuning.arguments import parse
from dystress_text.losses.registry import PARTS
from dystress_text.programs import sweep

ROOT = Path(__file__).resolve().parents[1]
# in the site's order
PAGES = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
# as .ci/site does
MOVED = {"index.md": "README.md", "data.md": "data/README.md", "changelog.md": "CHANGELOG.md"}
DOCUMENTS = [MOVED.get(page, f"docs/{page}") for page in PAGES]
DOCUMENTS += ["vision/README.md", "CONTRIBUTING.md"]
BLOCK = re.compile(
    r"(?:<!-- needs: ([\w, ]+) -->\n)?```(bash|python)\n(.*?)^```", re.DOTALL | re.MULTILINE
)
OURS = re.compile(r"([A-Z_]+=[\w.]+ )*(dystress|python|accelerate launch) ")
FILES = {
    "dystress_text/train.py": "train",
    "dystress_text.train": "train",
    "eval/senteval.py": "evaluate",
    "data/prepare.py": "prepare",
}
SHORT = "--max_steps=2 --train_batch_size=16 --eval_steps=0 --mixed_precision=no"
SHORTER = {  # options that the slow test adds to the commands of a program
    "train": f"{SHORT} --train_file=mine.txt --eval_set=none",
    "evaluate": "--mode=fast",
    "vision/train.py": "--max_steps=1 --train_batch_size=8 --max_train_samples=64 --knn_k=0",
    "vision/evaluate.py": "--limit=100 --k=5 --probe_epochs=1",
}


class Block(NamedTuple):
    document: str  # its path
    needs: str  # why no test runs it
    language: str  # bash or python
    text: str

    @property
    def lines(self):
        """Return the commands of this project's programs, each on one line."""
        lines = self.text.replace("\\\n", " ").replace(" && ", "\n").splitlines()
        return [line for line in lines if OURS.match(line)]


class Command(NamedTuple):
    program: str  # a command of dystress, or a file of vision/ or tests/
    arguments: tuple[str, ...]


def command_of(line):
    """Split a line of a block into program and arguments."""
    argv = shlex.split(line.split(" > ")[0], comments=True)
    while not re.search(r"^dystress$|\.py$|^dystress_text\.", argv[0]):
        argv.pop(0)
    if argv[0] == "dystress":
        argv.pop(0)
    program, *arguments = argv
    return Command(FILES.get(program, program), tuple(arguments))


def blocks_of(document):
    found = BLOCK.findall((ROOT / document).read_text())
    return [Block(document, *groups) for groups in found]


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]
OWN_CLASS, OWN_PARTS = [block.text for block in BLOCKS if "@register" in block.text]
ELSEWHERE = ("docs/losses.md", "CONTRIBUTING.md", "data/README.md")  # other tests run these


def images(program):
    """Return the module of a program of vision/."""
    return import_module(program.removesuffix(".py").replace("/", "."))


def check(command):
    """Raise unless the program accepts the command. A program in tests/ must exist."""
    program, arguments = command
    if program.startswith("tests/"):
        assert (ROOT / program).is_file()
    elif program == "sweep":
        cut = [*arguments, "--"].index("--")
        sweep.make_parser().parse_args(arguments[:cut])
        parse(arguments[cut + 1 :])
    elif program == "train":
        parse(arguments)
    elif program == "vision/train.py":
        images(program).parse(arguments)
    else:
        module = images(program) if program.endswith(".py") else dystress.program(program)
        module.make_parser().parse_intermixed_args(arguments)


def test_commands_parse(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_own_classes()
    for block in BLOCKS:
        for line in block.lines:
            print(block.document, line)  # pytest shows it if the check fails
            check(command_of(line))


def write_own_classes():
    Path("my_loss.py").write_text(OWN_CLASS)
    Path("my_parts.py").write_text(OWN_PARTS)


def write_table(file, *rows):
    with open(file, "w", newline="") as opened:
        csv.writer(opened).writerows(rows)


def write_inputs():
    """Write the files that the documents' commands read."""
    write_own_classes()
    pairs = eval_pairs("mini_sts")
    rows = list(zip(pairs.first, pairs.second, pairs.second[1:], strict=False))[:40]
    Path("mine.txt").write_text("\n".join(dict.fromkeys(pairs.first + pairs.second)))
    Path("sentences.txt").write_text("\n".join(pairs.first[:40]))
    write_table("triplets.csv", ("sent0", "sent1", "hard_neg"), *rows)
    write_table("tickets.csv", ("subject", "body"), *zip(pairs.first, pairs.second, strict=True))
    scored = zip(pairs.first, pairs.second, pairs.scores, strict=True)
    write_table("pairs.csv", ("sentence1", "sentence2", "score"), *scored)


@pytest.fixture(autouse=True)
def registry():
    """Forget the classes that snippets register."""
    known = dict(PARTS)
    yield
    PARTS.clear()
    PARTS.update(known)


def run_snippet(code, names):
    names.setdefault("__name__", "snippet")
    exec(compile(code, "snippet", "exec"), names)


def run_command(command):
    more = SHORTER.get(command.program, "")
    if {"--supervised", "--text_columns"} & {*command.arguments}:
        more = SHORT  # reads a table
    arguments = [*command.arguments, *more.split()]
    if command.program.endswith(".py"):
        code = images(command.program).main(arguments)
    else:
        code = dystress.main([command.program, *arguments])
    assert code == 0, command
    reset_accelerator()


@pytest.mark.slow(40)
def test_story(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path / "prepared"))
    write_inputs()
    done = set()
    names = {}  # the snippets of a document continue each other
    for block in BLOCKS:
        if block.needs:
            continue
        if block.language == "python" and block.document not in ELSEWHERE:
            run_snippet(block.text, names.setdefault(block.document, {}))
            reset_accelerator()
        for line in block.lines:
            command = command_of(line)
            if command not in done:
                done.add(command)
                run_command(command)
    assert len(done) >= 20


def test_snippets_run():
    for block in BLOCKS:
        if block.language == "python" and block.document == "docs/losses.md":
            run_snippet(block.text, {})
        elif block.language == "python":
            compile(block.text, block.document, "exec")


def test_links_resolve():
    """The site's build checks anchors."""
    for document in DOCUMENTS:
        page = ROOT / document
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), (document, target)
