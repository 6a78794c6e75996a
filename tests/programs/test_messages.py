"""Errors of programs are one line that names the option."""

import pytest
from conftest import make_sentences

from dystress_text import __main__ as dystress
from dystress_text.errors import UserError
from dystress_text.finetuning.corpus import TokenizedCorpus


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ("train --epochs 3", "--epochs"),
        ("train --loss infonce(nope(1))", "--loss"),
        ("train --crop_max 0.5", "--crop_max"),
        ("train --views crop --supervised --train_file a.txt", "--views"),
        ("train --train_file no.txt", "--train_file"),
        (
            "train --train_file a.txt --eval_set none --model_name_or_path nope",
            "--model_name_or_path",
        ),
        ("train --preset own-text --train_file a.txt --hybrid bert-mini-wiki", "--hybrid"),
        ("train --preset own-text --train_file a.txt --hybrid lexical --distill m", "--distill"),
        ("train --preset own-text --train_file a.txt --distill nope", "--distill"),
        ("train --preset quickstart --train_batch_size 99 --train_file a.txt", "--train_batch"),
        ("evaluate --suite mini --model nope", "nope"),
        ("export nope --to hf", "nope"),
    ],
)
def test_an_error_is_one_line_and_leaves_nothing(argv, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(make_sentences(80)))
    monkeypatch.setattr(TokenizedCorpus, "batch", lambda *_: pytest.fail("trained"))
    assert dystress.main(argv.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("command", [name for name in dystress.COMMANDS if name != "train"])
def test_options_cannot_be_abbreviated(command):
    parser = dystress.program(command).make_parser()
    known = [name for name in parser._option_string_actions if name.startswith("--")]
    for short in {name[:-1] for name in known}.difference(known):
        with pytest.raises(UserError, match=f"^unknown option {short}"):
            parser.parse_args([f"{short}=x"])


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("latin-1", "a.txt"), ("utf-16", "a.txt"), ("utf-16", "a.csv"), ("shift-jis", "a.jsonl")],
)
def test_another_encoding_is_refused(encoding, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (
        "猫は窓辺に座っています。" if encoding == "shift-jis" else "Der Bär läuft über die Straße."
    )
    lines = ["text", *(f"{number} {text}" for number in range(40))]
    (tmp_path / name).write_bytes("\n".join(lines).encode(encoding))
    assert dystress.main(["train", "--preset=own-text", f"--train_file={name}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{name!r}" in line
    assert "iconv" in line
