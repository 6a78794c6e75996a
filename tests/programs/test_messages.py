"""What a program refuses, it refuses in one line that says the way on; the commands in it are run
here.
"""

import gzip
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from conftest import BERT, SIZES, build_tokenizer, make_sentences
from transformers import BertConfig, BertModel

from dystress_text import __main__ as dystress
from dystress_text.cli import extras
from dystress_text.errors import OTHER_NAMES, UserError
from dystress_text.simcse.arguments import SIMCSE, parse
from dystress_text.simcse.texts import column_of_table

NO_MODEL = "no folder 'nope' here, and the hub, which is out of reach, has left no model of this name in its cache"


@pytest.mark.parametrize(
    ("words", "said"),
    [("train --epochs 3", f"unknown option --epochs (here it is --num_train_epochs); {SIMCSE}"),
     ("train --lr=1e-4", f"unknown option --lr (here it is --learning_rate); {SIMCSE}"),
     ("train --batch-size 8", f"unknown option --batch-size (here it is --train_batch_size); {SIMCSE}"),
     ("train --model x", f"unknown option --model (here it is --model_name_or_path); {SIMCSE}"),
     ("export x --format onnx", "unknown option --format (here it is --to)"),
     ("train --temp -1", "--temp: a temperature is a number above 0, such as 0.05, got -1.0"),
     ("train --max_steps 0", "--max_steps: 0 steps train nothing; evaluation has a program of its own"),
     ("train --preset own-text --held_out 9 --eval_set mini_sts",
      "--held_out: has no effect beside --eval_set mini_sts, which tells more; leave one out"),
     ("train --model_name_or_path nope --train_file a.txt --eval_set none", f"--model_name_or_path: {NO_MODEL}"),
     ("senteval --suite mini --model nope", NO_MODEL),
     ("senteval --suite mini --model nope --pooler_type avg", NO_MODEL),
     ("export nope --to hf", NO_MODEL),
     ("export a/b/nope --to hf", "'a/b/nope' is no folder, and no name on the hub has this form")],
)  # fmt: skip
def test_a_line_says_the_way_on(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(make_sentences(80)))
    assert dystress.main(words.split()) == 2
    assert capsys.readouterr().err == f"dystress {words.split()[0]}: error: {said}\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt"]


def test_other_names_are_of_other_programs():
    known = {*parse([]).options(), "temp", "to"}
    assert set(OTHER_NAMES.values()) <= known
    assert OTHER_NAMES.keys().isdisjoint(known)


@pytest.mark.parametrize("command", [name for name in dystress.COMMANDS if name != "train"])
def test_no_beginning_of_an_option_is_taken_for_it(command):
    parser = dystress.program(command).make_parser()
    options = [name for name in parser._option_string_actions if name.startswith("--")]
    for name in options:
        for cut in (short for short in (name[:-1], name[:5]) if short not in options):
            with pytest.raises(UserError, match=f"^unknown option {cut}"):
                parser.parse_args([f"{cut}=x"])


@pytest.mark.parametrize("name", ["--num_train", "--learning", "--train_f", "--eval", "--seedd"])
def test_no_beginning_of_an_option_of_training_is_taken_for_it(name):
    with pytest.raises(UserError, match=f"^unknown option {name}"):
        parse([name, "3"])


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("LATIN1", "Der Bär läuft über die Straße.\n"), ("CP1252", "Sie sagt „Grüße“ für 3 €.\n"),
     ("UTF-16", "The cat sat on the mat.\n")],
)  # fmt: skip
def test_a_text_in_another_encoding_names_the_command_that_converts_it(
    encoding, text, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"{number} {text}" for number in range(40))
    (tmp_path / "my text.txt").write_text(lines, encoding=encoding)
    (tmp_path / "my text.csv").write_text(f"text,für\n{text.strip()},\n", encoding=encoding)
    words = ["train", "--preset=own-text", "--max_steps=1"]
    for name in ("my text.txt", "my text.csv"):
        assert dystress.main([*words, f"--train_file={name}"]) == 2
        said = capsys.readouterr().err
        assert (said.count("\n"), f"is not in UTF-8 but probably in {encoding}" in said) == (
            1,
            True,
        )
        subprocess.run(re.search("iconv .*", said)[0], shell=True, check=True)
    assert (tmp_path / "utf8-my text.txt").read_text(encoding="utf-8").removeprefix(
        "\ufeff"
    ) == lines
    assert column_of_table("utf8-my text.csv", "text").columns == 1


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "Кошка сидит на окне."),
        ("shift-jis", "猫は窓辺に座っています。"),
        ("gb18030", "猫坐在窗台上看雨。"),
        ("cp1255", "החתול ישב."),
    ],
)
def test_a_text_that_is_not_of_western_europe_is_not_called_so(
    encoding, text, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_bytes(
        "".join(f"{number} {text}\n" for number in range(40)).encode(encoding)
    )
    assert dystress.main(["train", "--preset=own-text", "--max_steps=1", "--train_file=a.txt"]) == 2
    assert "is not in UTF-8; save it so" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a.txt.gz", "packed.txt", "a.txt"])
def test_no_command_is_named_that_would_not_convert_the_file(name, tmp_path, monkeypatch, capsys):
    """Packed, or with NUL bytes and no mark of UTF-16."""
    monkeypatch.chdir(tmp_path)
    content = "\n".join(f"{number} Der Bär läuft." for number in range(40)).encode("latin-1")
    Path(name).write_bytes(
        gzip.compress(content) if name != "a.txt" else content.replace(b"4 ", b"4\0")
    )
    assert (
        dystress.main(["train", "--preset=own-text", "--max_steps=1", f"--train_file={name}"]) == 2
    )
    said = capsys.readouterr().err
    assert "is not in UTF-8; save it so" in said
    assert "iconv" not in said


def test_some_damaged_lines_are_left_out_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = "\n".join(f"{sentence} é" for sentence in make_sentences(40))
    (tmp_path / "a.txt").write_bytes(good.encode() + b"\nbad \xff\xe9\n")
    with pytest.warns(
        match=r"lines are left out: 'a.txt' has damaged bytes among its UTF-8: iconv -c "
    ):
        assert (
            dystress.main(["train", "--preset=own-text", "--max_steps=1", "--train_file=a.txt"])
            == 0
        )


def test_a_table_with_semicolons_names_the_command_that_converts_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text('text;label\n"Well, yes; no";1\nThe cat sat.;0\n')
    with pytest.raises(UserError, match=r"a \.csv has commas between cells") as caught:
        column_of_table("a.csv", "text")
    command = str(caught.value).partition("for commas: python")[2]
    subprocess.run(f"{sys.executable}{command}", shell=True, check=True)
    assert column_of_table("commas-a.csv", "text").rows["text"][:] == [
        "Well, yes; no",
        "The cat sat.",
    ]
    (tmp_path / "packed.csv").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    with pytest.raises(UserError, match=r"a \.csv has commas between cells, a \.tsv tabs$"):
        column_of_table("packed.csv", "text")


@pytest.mark.parametrize(("layers", "warned"), [(12, True), (11, False)])
def test_a_deep_encoder_with_a_rate_for_a_small_one_is_warned(
    layers, warned, tmp_path, monkeypatch, recwarn
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(make_sentences(40)))
    BertModel(
        BertConfig(**SIZES, **BERT | {"num_hidden_layers": layers, "max_position_embeddings": 40})
    ).save_pretrained("m")
    build_tokenizer().save_pretrained("m")
    words = [
        "--preset=own-text",
        "--model_name_or_path=m",
        "--train_file=a.txt",
        "--max_seq_length=32",
        "--max_steps=1",
    ]
    warnings.simplefilter("always")
    assert dystress.main(["train", *words, "--max_steps=1"]) == 0
    said = [
        str(each.message)
        for each in recwarn
        if "learning_rate: 0.003 is for a small encoder" in str(each.message)
    ]
    assert bool(said) == warned


def test_the_line_that_installs_an_extra_is_that_of_the_place(tmp_path, monkeypatch):
    def said():
        with pytest.raises(UserError) as caught:
            extras.require("plots", "a figure")
        return str(caught.value).partition("pip install ")[2]

    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    monkeypatch.chdir(extras.ROOT)
    assert said() == "-c constraints.txt -e '.[plots]'"
    monkeypatch.chdir(tmp_path)
    assert said() == f"-c {extras.ROOT}/constraints.txt -e '{extras.ROOT}[plots]'"
    monkeypatch.setattr(
        extras, "ROOT", tmp_path
    )  # of an installed package: it has no constraints.txt
    assert said() == "'dystress-text[plots]'"
