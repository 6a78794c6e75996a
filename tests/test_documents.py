"""The documents: every command is run or marked, every snippet runs as printed, every option and
link exists.

- A comment before a block, ``<!-- needs: gpu, hub -->``, says why no test runs it: ``gpu``, ``hub``
  (downloads), ``hours`` (more than a test may take), ``package`` (one that nothing here depends
  on). Its commands go through the real parser of their program; of a benchmark the file and the
  names of its options are checked.
- ``test_the_documents_as_a_story`` (slow) runs all others: in one folder, in the order of the
  documents, with the small encoder and two steps. ``SHORTER`` says what it adds to a command.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from conftest import reset_accelerator

from dystress_text import __main__ as dystress
from dystress_text import loss
from dystress_text.config.arguments import parse
from dystress_text.io.paths import EMBEDDED
from dystress_text.losses.registry import PARTS, parameters
from dystress_text.programs import sweep
from vision import evaluate
from vision import export as export_images
from vision import prepare as prepare_images
from vision import train as pretrain

ROOT = Path(__file__).resolve().parents[1]
PAGES = re.findall(
    r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
)  # in the site's order
MOVED = {
    "index.md": "README.md",
    "data.md": "data/README.md",
    "changelog.md": "CHANGELOG.md",
}  # as .ci/site does
DOCUMENTS = [*(ROOT / MOVED.get(page, f"docs/{page}") for page in PAGES), ROOT / "vision/README.md"]
PAGES_OF_DOCS = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/laboratory").glob("*.md")]
NEEDS = {"gpu", "hub", "hours", "package"}
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
    words: tuple[str, ...]
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
    """Raise unless the program takes the command; of benchmarks and their kind, options are looked
    up below.
    """
    words = list(command.words)
    if command.program in ("train", "vision/train.py"):
        (parse if command.program == "train" else pretrain.parse)(words)
    elif command.program == "vision/prepare.py":
        prepare_images.make_parser().parse_args(command.words)
    elif command.program in ("vision/evaluate.py", "vision/export.py"):
        (evaluate if "evaluate" in command.program else export_images).make_parser().parse_args(
            words
        )
    elif command.program == "sweep":
        cut = words.index("--") if "--" in words else len(words)
        sweep.make_parser().parse_args(words[:cut])
        parse(words[cut + 1 :])
    elif command.program.startswith("tests/"):
        assert (ROOT / command.program).is_file()
    else:
        dystress.program(command.program).make_parser().parse_intermixed_args(words)


def test_every_command_is_one_that_its_program_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "my_loss.py").write_text(OWN_CLASS)
    for command in COMMANDS:
        try:
            check(command)
        except (Exception, SystemExit) as error:
            raise AssertionError(
                f"{command.block.document}: {command.program} {' '.join(command.words)}"
            ) from error
    assert len(COMMANDS) > 60


def test_marks_pages_and_installs():
    assert set().union(*(block.needs for block in BLOCKS)) == NEEDS
    assert set(PAGES_OF_DOCS) <= set(DOCUMENTS)  # each page is in the navigation
    installs = [
        line
        for block in BLOCKS
        for line in block.lines
        if "pip install" in line and is_install(line)
    ]
    assert all("-c constraints.txt" in line or "dist/dystress_text-" in line for line in installs)
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110


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
def test_the_documents_as_a_story(tmp_path, monkeypatch, capsys):
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
            words = (
                *command.words,
                *(STEPS if TABLES & {*command.words} else SHORTER.get(command.program, ())),
            )
            if (command.program, words) in done:
                continue
            done.add((command.program, words))
            capsys.readouterr()
            main = IMAGES.get(command.program) or (
                lambda rest, name=command.program: dystress.main([name, *rest])
            )
            code = main(list(words))
            assert code == 0, (
                f"{block.document}: {command.program} {' '.join(words)}\n{capsys.readouterr().err}"
            )
            reset_accelerator()
    assert len(done) >= 20


def test_the_tables_of_losses_are_those_of_the_registry():
    page = (ROOT / "docs/losses.md").read_text()
    of_all = ("detach_temperature", "hard_negative_weight", "blockwise")
    named = {
        name: cls
        for name, cls in PARTS.items()
        if cls.__module__.startswith(("dystress_text.", "vision."))
    }
    for name, cls in named.items():
        taken = {key: each for key, each in parameters(cls).items() if key not in of_all}
        words = [
            key if each.default is each.empty else f"{key}={each.default!r}"
            for key, each in taken.items()
        ]
        call, images = f"`{name}({', '.join(words)})`", cls.__module__.startswith("vision.")
        assert (call if images else f"| {call} | `{cls.__name__}` |") in page, call
    assert page.count("\n| `") == sum(
        cls.__module__.startswith("dystress_text.") for cls in named.values()
    )
    (texts,) = re.findall(r"```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert all(str(loss(str(loss(text)))) == str(loss(text)) for text in texts.splitlines())


def test_parts_of_a_loss_as_contributors_write_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"^dystress train (.*)", page, re.MULTILINE)
    (tmp_path / "my_parts.py").write_text(code)
    assert str(parse(shlex.split(command)).loss) == "hinge(margin(quadratic(0.05, 0.07)))"
    for text in ("infonce(quadratic(0.05, 0.07))", "infonce(margin(0.05))", "hinge(0.05)"):
        assert f"`{text}`" in page
        assert loss(text)(*torch.randn(2, 8, 4)).isfinite()


def test_snippets_without_a_model_run_as_printed():
    snippets = [b.text for b in BLOCKS if b.language == "python" and b.document == "docs/losses.md"]
    assert len(snippets) == 2
    for code in snippets:
        run_snippet(code)
    for block in BLOCKS:
        if block.language == "python" and block.needs:
            compile(block.text, block.document, "exec")
            if "package" not in block.needs:
                run_snippet(
                    "\n".join(
                        line for line in block.text.splitlines() if re.match("from|import", line)
                    )
                )


def test_the_threshold_of_the_page_on_search_lets_one_query_in_twenty_find_a_false_match():
    units = np.random.default_rng(0).standard_normal((7000, 24)) + 1
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    vectors, unrelated = units[:4000], units[4000:]
    (snippet,) = [
        block.text
        for block in BLOCKS
        if block.document == "docs/search.md" and "threshold" in block.text
    ]
    names = {"vectors": vectors}
    run_snippet(snippet, names)
    wrong = (unrelated @ vectors.T).max(1) > names["threshold"]
    assert wrong.mean() == pytest.approx(1 / names["queries"], abs=0.03)


def test_options_that_the_documents_name_exist(capsys):
    """But for docs/from-simcse.md, where those of SimCSE's programs stand; its own test takes them
    one by one.
    """
    mains = [*IMAGES.values(), *(dystress.program(name).main for name in dystress.COMMANDS)]
    for main in mains:
        with pytest.raises(SystemExit):
            main(["--help", "all"])
    known = capsys.readouterr().out
    known += " ".join(
        launch_command_parser()._option_string_actions
    )  # its help shows those of one kind of launch
    benchmarks = ROOT.glob("tests/benchmarks/*.py")
    known += "".join(file.read_text() for file in benchmarks)
    others = {
        "--dist",
        "--no-deps",
        "--wheel-dir",
        "--repo-type",
        "--include",
        "--local-dir",
        "--outfile",
        "--outtype",
    }
    for document in DOCUMENTS:
        if document.name not in ("from-simcse.md", "CHANGELOG.md"):
            named = set(re.findall(r"(?<![\w-])--[a-z_-]+\b", document.read_text())) - others
            assert {option for option in named if option not in known} == set(), document


def prose(text):
    """The lines of a page that a person wraps: none of tables and code, none that a link or a
    picture makes long.
    """
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [
        line
        for line in text.splitlines()
        if not line.startswith(("|", "    ")) and " " in line.strip("- ")
    ]


def too_long(text):
    """The lines of more than 100 characters, but for those of one link that cannot be broken."""
    return [
        line
        for line in prose(text)
        if len(line) > 100 and not re.fullmatch(r"\s*!?\[[^]]*\]\(\S+\)\S*", line)
    ]


def test_lines_of_prose_are_short():
    assert too_long("a " * 51) == ["a " * 51]
    assert (
        too_long("| " + "a " * 60 + f"|\n[a b](https://{'a' * 99})\n```\n{'a ' * 60}\n```\n") == []
    )
    files = [*PAGES_OF_DOCS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    long = {file.name: too_long(file.read_text()) for file in files}
    assert {name: lines for name, lines in long.items() if lines} == {}


def test_the_documents_have_at_most_23000_words():
    files = [*PAGES_OF_DOCS, ROOT / "README.md"]
    assert sum(len(file.read_text().replace("|", " ").split()) for file in files) <= 23_000


def test_links_lead_to_files_of_the_repository():
    """Those of pages outside the site too; its own build checks anchors."""
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), (document, target)


def test_no_path_of_a_machine():
    folders = (ROOT / name for name in ("dystress_text", "eval", "vision", "tests", "docs", ".ci"))
    files = [
        ROOT / "README.md",
        *(file for folder in folders for file in folder.rglob("*") if file.is_file()),
    ]
    texts = [file.read_text() for file in files if file.suffix in {".py", ".md", "", ".txt"}]
    assert not any("/wo" + "rk/" in text or "/ro" + "ot/" in text for text in texts)
