"""The documents: their commands parse, their snippets run, their links resolve.

- A comment before a block, ``<!-- needs: gpu, hub -->``, says why no test runs it: ``gpu``, ``hub``
  (downloads), ``hours`` (more than a test may take), ``package`` (one that nothing here depends
  on). Its commands still have to parse.
- The slow test runs all other blocks in one folder, in the order of the documents, with the small
  encoder and two steps. ``SHORTER`` says what it adds to a command.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from conftest import reset_accelerator

from dystress_text import __main__ as dystress
from dystress_text import loss
from dystress_text.config.arguments import parse
from dystress_text.io.paths import EMBEDDED
from dystress_text.programs import sweep
from vision import evaluate
from vision import export as export_images
from vision import prepare as prepare_images
from vision import train as pretrain

ROOT = Path(__file__).resolve().parents[1]
# in the site's order
PAGES = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
# as .ci/site does
MOVED = {"index.md": "README.md", "data.md": "data/README.md", "changelog.md": "CHANGELOG.md"}
DOCUMENTS = [*(ROOT / MOVED.get(page, f"docs/{page}") for page in PAGES), ROOT / "vision/README.md"]
BLOCK = re.compile(
    r"(?:<!-- needs: ([\w, ]+) -->\n)?```(bash|python)\n(.*?)^```", re.DOTALL | re.MULTILINE
)
PROGRAMS = {"train.py": "train", "dystress_text/train.py": "train", "eval/senteval.py": "senteval",
            "data/prepare.py": "prepare"}  # fmt: skip


class Block(NamedTuple):
    document: str  # its path
    needs: frozenset[str]  # why no test runs it
    language: str  # bash or python
    text: str

    @property
    def lines(self) -> list[str]:
        """Its commands, each on one line."""
        joined = self.text.replace("\\\n", " ").replace(" && ", "\n").splitlines()
        return [line.strip() for line in joined if line.strip() and not line.startswith("#")]


class Command(NamedTuple):
    program: str  # a command of dystress, or a file of vision/ or tests/
    arguments: tuple[str, ...]
    block: Block


def is_install(line):
    """Whether a line makes an environment or runs the tests: .ci/run does both."""
    return bool(
        re.match(r"python3 -m venv|\. \.venv|pip (install|wheel) |(\w+=\w+ )?pytest ", line)
    )


def is_shell(line):
    """Whether the shell does something with a line, so that it is no plain command."""
    return bool(re.search(r"[$({;]|^done$|^hf ", re.sub(r'"[^"$]*"| # .*', "", line)))


def command_of(line, block):
    """The command of a line of this project's programs."""
    argv = shlex.split(line.split(" > ")[0], comments=True)
    while re.fullmatch(r"[A-Z_]+=\S*", argv[0]):
        argv.pop(0)
    if argv[0] == "dystress":
        return Command(argv[1], tuple(argv[2:]), block)
    if argv[:2] == ["accelerate", "launch"]:
        options = launch_command_parser().parse_args(argv[2:])
        started, rest = options.training_script, options.training_script_args
    else:
        started, *rest = [argument for argument in argv[1:] if argument != "-m"]
    program = PROGRAMS.get(started, started.removeprefix("dystress_text."))
    return Command(program, tuple(rest), block)


BLOCKS = [
    Block(str(document.relative_to(ROOT)), frozenset(re.findall(r"\w+", needs)), language, text)
    for document in DOCUMENTS
    for needs, language, text in BLOCK.findall(document.read_text())
]
COMMANDS = [  # marked ones too, but for lines that are the shell's
    command_of(line, block)
    for block in BLOCKS
    for line in (block.lines if block.language == "bash" else ())
    if not line.startswith("printf ")
    and not is_install(line)
    and not (block.needs and is_shell(line))
]
(OWN_CLASS,) = [
    block.text
    for block in BLOCKS
    if "@register" in block.text and block.document == "docs/losses.md"
]
IMAGES = {
    "vision/train.py": pretrain.main,
    "vision/evaluate.py": evaluate.main,
    "vision/export.py": export_images.main,
    "vision/prepare.py": prepare_images.main,
}


def check(command):
    """Raise unless the program takes the command; of a program in tests/, its file must exist."""
    arguments = list(command.arguments)
    if command.program in ("train", "vision/train.py"):
        (parse if command.program == "train" else pretrain.parse)(arguments)
    elif command.program == "vision/prepare.py":
        prepare_images.make_parser().parse_args(command.arguments)
    elif command.program in ("vision/evaluate.py", "vision/export.py"):
        (evaluate if "evaluate" in command.program else export_images).make_parser().parse_args(
            arguments
        )
    elif command.program == "sweep":
        cut = arguments.index("--") if "--" in arguments else len(arguments)
        sweep.make_parser().parse_args(arguments[:cut])
        parse(arguments[cut + 1 :])
    elif command.program.startswith("tests/"):
        assert (ROOT / command.program).is_file()
    else:
        dystress.program(command.program).make_parser().parse_intermixed_args(arguments)


def test_commands_parse(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "my_loss.py").write_text(OWN_CLASS)
    for command in COMMANDS:
        try:
            check(command)
        except (Exception, SystemExit) as error:
            raise AssertionError(
                f"{command.block.document}: {command.program} {' '.join(command.arguments)}"
            ) from error


MINI_STS = EMBEDDED / "senteval" / "STS" / "MiniSTS" / "mini-sts.csv"
STEPS = ("--max_steps=2", "--train_batch_size=16", "--eval_steps=0", "--mixed_precision=no")
TABLES = {"--supervised", "--text_columns"}  # of commands that read no lines
SHORTER = {  # what the story adds to a command of a program
    "train": (*STEPS, "--train_file=mine.txt", "--eval_set=none"),
    "senteval": ("--mode=fast",),
    "vision/train.py": (
        "--max_steps=1",
        "--train_batch_size=8",
        "--max_train_samples=64",
        "--knn_k=0",
    ),
    "vision/evaluate.py": ("--limit=100", "--k=5", "--probe_epochs=1"),
}


def write_inputs(folder):
    """The files that the documents' commands read."""
    rows = [line.replace('"', "").split("\t") for line in MINI_STS.read_text().splitlines()]
    firsts, seconds = list(dict.fromkeys(row[5] for row in rows)), [row[6] for row in rows]
    (folder / "my_loss.py").write_text(OWN_CLASS)
    (folder / "mine.txt").write_text("\n".join(dict.fromkeys([*firsts, *seconds])))
    (folder / "sentences.txt").write_text("\n".join(firsts[:40]))
    triplets = [
        f'"{a}","{b}","{c}"' for a, b, c in zip(firsts[:40], seconds, firsts[40:80], strict=False)
    ]
    (folder / "triplets.csv").write_text("\n".join(["sent0,sent1,hard_neg", *triplets]) + "\n")
    pairs = [f'"{row[5]}","{row[6]}",{row[4]}' for row in rows[:60]]
    (folder / "tickets.csv").write_text(
        "subject,body\n" + "\n".join(pair.rpartition(",")[0] for pair in pairs)
    )
    (folder / "pairs.csv").write_text("\n".join(["sentence1,sentence2,score", *pairs]) + "\n")


def run_snippet(code, names=None):
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"} if names is None else names)


@pytest.mark.slow(40)
def test_story(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path / "prepared"))
    write_inputs(tmp_path)
    done, names = set(), {}  # the snippets of a document go on from each other
    for block in BLOCKS:
        if block.needs or (
            block.language == "python" and block.document in ("docs/losses.md", "data/README.md")
        ):
            continue
        if block.language == "python":
            run_snippet(block.text, names.setdefault(block.document, {"__name__": "snippet"}))
            reset_accelerator()
            continue
        for command in (command for command in COMMANDS if command.block == block):
            shorter = SHORTER.get(command.program, ())
            if TABLES & {*command.arguments}:
                shorter = STEPS
            arguments = (*command.arguments, *shorter)
            if (command.program, arguments) in done:
                continue
            done.add((command.program, arguments))
            capsys.readouterr()
            if command.program in IMAGES:
                code = IMAGES[command.program](list(arguments))
            else:
                code = dystress.main([command.program, *arguments])
            error = capsys.readouterr().err
            assert code == 0, f"{block.document}: {command.program} {' '.join(arguments)}\n{error}"
            reset_accelerator()
    assert len(done) >= 20


def test_snippet_of_contributing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"^dystress train (.*)", page, re.MULTILINE)
    (tmp_path / "my_parts.py").write_text(code)
    assert str(parse(shlex.split(command)).loss) == "hinge(margin(quadratic(0.05, 0.07)))"
    for text in ("infonce(quadratic(0.05, 0.07))", "infonce(margin(0.05))", "hinge(0.05)"):
        assert loss(text)(*torch.randn(2, 8, 4)).isfinite()


def test_snippets_run():
    snippets = [b.text for b in BLOCKS if b.language == "python" and b.document == "docs/losses.md"]
    assert snippets
    for code in snippets:
        run_snippet(code)
    for block in BLOCKS:
        if block.language == "python" and block.needs:
            compile(block.text, block.document, "exec")
            imports = [line for line in block.text.splitlines() if re.match("from|import", line)]
            if "package" not in block.needs:
                run_snippet("\n".join(imports))


def test_links_resolve():
    """The site's build checks anchors."""
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), (document, target)
