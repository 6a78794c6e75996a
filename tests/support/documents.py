"""The commands and snippets of the documents, as the tests read them.

A comment before a block, ``<!-- needs: gpu, hub -->``, says why no test runs it: ``gpu``, ``hub`` (downloads),
``hours`` (more than a test may take), ``browser`` (serves a page until Ctrl-C). All other blocks are run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accelerate.commands.launch import launch_command_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)  # in the site's order
MOVED = {"index.md": "README.md", "data.md": "data/README.md", "changelog.md": "CHANGELOG.md"}  # as .ci/site does
DOCUMENTS = [*(ROOT / MOVED.get(page, f"docs/{page}") for page in PAGES), ROOT / "vision/README.md"]
NEEDS = {"gpu", "hub", "hours", "browser"}
BLOCK = re.compile(r"(?:<!-- needs: ([\w, ]+) -->\n)?```(bash|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = {
    "train.py": "train",  # SimCSE's own, whose line is one of ours too
    "dystress_text/train.py": "train",
    "dystress_text.train": "train",
    "eval/senteval.py": "senteval",
    "data/prepare.py": "prepare",
    "vision/train.py": "vision/train.py",
    "vision/evaluate.py": "vision/evaluate.py",
    "vision/export.py": "vision/export.py",
}
MODULE = re.compile(r"dystress_text\.(\w+)")


@dataclass(frozen=True)
class Block:
    """A block of a document.

    Attributes:
        document: its path in the repository.
        needs: why no test runs it; empty for a block that is run.
        language: bash or python.
        text: the block.
    """

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
    """A command line of one of this project's programs.

    Attributes:
        program: a command of ``dystress``, or a file of ``vision/``.
        words: its arguments.
        block: where it stands.
    """

    program: str
    words: tuple[str, ...]
    block: Block


def blocks() -> list[Block]:
    """All blocks of all documents, in their order."""
    found = []
    for document in DOCUMENTS:
        for needs, language, text in BLOCK.findall(document.read_text()):
            reasons = frozenset(filter(None, re.split(", *", needs)))
            found.append(Block(str(document.relative_to(ROOT)), reasons, language, text))
    return found


def is_install(line: str) -> bool:
    """Whether a line makes an environment or runs the tests: .ci/run does both."""
    return bool(re.match(r"python3 -m venv|pip (install|wheel) |(\w+=\w+ )?pytest ", line))


def is_shell(line: str) -> bool:
    """Whether the shell does something with a line, so that it is no plain command."""
    return bool(re.search(r"[$({;]|^done$|^hf ", re.sub(r'"[^"$]*"| # .*', "", line)))


def command_of(line: str, block: Block) -> Command:
    """The command of a line.

    Raises:
        ValueError: the line starts none of this project's programs.
    """
    words = shlex.split(line.split(" > ")[0], comments=True)
    while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    if words[0] == "dystress":
        return Command(words[1], tuple(words[2:]), block)
    if words[:2] == ["accelerate", "launch"]:
        options = launch_command_parser().parse_args(words[2:])
        started, rest = options.training_script, options.training_script_args
    else:
        started, *rest = [word for word in words[1:] if word != "-m" or word is not words[1]]
    if found := MODULE.fullmatch(started):
        return Command(PROGRAMS.get(started, found[1]), tuple(rest), block)
    if started in PROGRAMS:
        return Command(PROGRAMS[started], tuple(rest), block)
    if (ROOT / started).is_file() and started.startswith("tests/"):
        return Command(started, tuple(rest), block)
    raise ValueError(f"{block.document}: {line!r} starts no program of this project")


def commands() -> Iterator[Command]:
    """The commands of all documents; marked ones too, but for lines that are the shell's."""
    for block in blocks():
        for line in block.lines if block.language == "bash" else ():
            written = line.startswith("printf ")  # a small file; the story has its own
            if not written and not is_install(line) and not (block.needs and is_shell(line)):
                yield command_of(line, block)
