"""The commands and snippets of the documents, as the tests read them.

A comment before a block, ``<!-- needs: gpu, hub -->``, says why no test runs it: ``gpu``, ``hub`` (downloads),
``hours`` (more than a test may take), ``package`` (one that nothing here depends on). All other blocks are run.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from accelerate.commands.launch import launch_command_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)  # in the site's order
MOVED = {"index.md": "README.md", "data.md": "data/README.md", "changelog.md": "CHANGELOG.md"}  # as .ci/site does
DOCUMENTS = [*(ROOT / MOVED.get(page, f"docs/{page}") for page in PAGES), ROOT / "vision/README.md"]
NEEDS = {"gpu", "hub", "hours", "package"}
BLOCK = re.compile(r"(?:<!-- needs: ([\w, ]+) -->\n)?```(bash|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = {"train.py": "train", "dystress_text/train.py": "train", "eval/senteval.py": "senteval",
            "data/prepare.py": "prepare"}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A block of a document: the document's path, why no test runs it, bash or python, and the block."""

    document: str
    needs: frozenset[str]
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Its commands, each on one line."""
        joined = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in joined if line.strip() and not line.startswith("#")]


@dataclass(frozen=True)
class Command:
    """A command of ``dystress``, or a file of ``vision/`` or ``tests/``, and its arguments."""

    program: str
    words: tuple[str, ...]
    block: Block


def blocks() -> list[Block]:
    """All blocks of all documents, in their order."""
    return [
        Block(str(document.relative_to(ROOT)), frozenset(re.findall(r"\w+", needs)), language, text)
        for document in DOCUMENTS
        for needs, language, text in BLOCK.findall(document.read_text())
    ]


def is_install(line: str) -> bool:
    """Whether a line makes an environment or runs the tests: .ci/run does both."""
    return bool(re.match(r"python3 -m venv|pip (install|wheel) |(\w+=\w+ )?pytest ", line))


def is_shell(line: str) -> bool:
    """Whether the shell does something with a line, so that it is no plain command."""
    return bool(re.search(r"[$({;]|^done$|^hf ", re.sub(r'"[^"$]*"| # .*', "", line)))


def command_of(line: str, block: Block) -> Command:
    """The command of a line of this project's programs."""
    words = shlex.split(line.split(" > ")[0], comments=True)
    while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    if words[0] == "dystress":
        return Command(words[1], tuple(words[2:]), block)
    if words[:2] == ["accelerate", "launch"]:
        options = launch_command_parser().parse_args(words[2:])
        started, rest = options.training_script, options.training_script_args
    else:
        started, *rest = [word for word in words[1:] if word != "-m"]
    program = PROGRAMS.get(started, started.removeprefix("dystress_text."))
    return Command(program, tuple(rest), block)


def commands() -> list[Command]:
    """The commands of all documents; marked ones too, but for lines that are the shell's."""
    return [
        command_of(line, block)
        for block in blocks()
        for line in (block.lines if block.language == "bash" else ())
        if not line.startswith("printf ") and not is_install(line) and not (block.needs and is_shell(line))
    ]
