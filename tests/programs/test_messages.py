"""Errors of programs are one line that names the option."""

import gzip
from pathlib import Path

import pytest
from conftest import make_sentences

from dystress_text import __main__ as dystress
from dystress_text.data.corpus import TokenizedCorpus
from dystress_text.errors import UserError


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ("train --epochs 3", ("--epochs", "--num_train_epochs")),
        ("train --beside m", ("--beside", "--hybrid")),
        ("train --learning 3", ("--learning",)),
        ("train --temp -1", ("--temp",)),
        ("train --loss infonce(nope(1))", ("--loss", "nope")),
        ("train --crop_max 0.5", ("--crop_max", "--views")),
        ("train --views crop --supervised --train_file a.txt", ("--views",)),
        ("train --train_file no.txt", ("--train_file", "no.txt")),
        (
            "train --train_file a.txt --eval_set none --model_name_or_path nope",
            ("--model_name_or_path", "nope"),
        ),
        ("train --preset own-text --train_file a.txt --hybrid bert-mini-wiki", ("--hybrid",)),
        ("train --preset quickstart --train_batch_size 99 --train_file a.txt", ("--train_batch",)),
        ("senteval --suite mini --model nope", ("nope",)),
        ("export nope --to hf", ("nope",)),
    ],
)
def test_an_error_is_one_line_and_leaves_nothing(argv, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(make_sentences(80)))
    monkeypatch.setattr(TokenizedCorpus, "batch", lambda *_: pytest.fail("trained"))
    assert dystress.main(argv.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in named), line
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("command", [name for name in dystress.COMMANDS if name != "train"])
def test_options_cannot_be_abbreviated(command):
    parser = dystress.program(command).make_parser()
    options = [name for name in parser._option_string_actions if name.startswith("--")]
    for name in options:
        for cut in (short for short in (name[:-1], name[:5]) if short not in options):
            with pytest.raises(UserError, match=f"^unknown option {cut}"):
                parser.parse_args([f"{cut}=x"])


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", "Der Bär läuft über die Straße."),
        ("utf-16", "The cat sat on the mat."),
        ("shift-jis", "猫は窓辺に座っています。"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_another_encoding_is_refused(encoding, text, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = ["text", *(f"{number} {text}" for number in range(40))]
    content = "\n".join(lines).encode(encoding)
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert (
        dystress.main(["train", "--preset=own-text", "--max_steps=1", f"--train_file={name}"]) == 2
    )
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{name!r}" in said
    assert "expected UTF-8" in said


def test_some_damaged_lines_are_left_out_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = "\n".join(f"{sentence} é" for sentence in make_sentences(40))
    (tmp_path / "a.txt").write_bytes(good.encode() + b"\nbad \xff\xe9\n")
    with pytest.warns(match=r"^'a.txt': 1 lines that are not UTF-8 are left out$"):
        assert (
            dystress.main(["train", "--preset=own-text", "--max_steps=1", "--train_file=a.txt"])
            == 0
        )
