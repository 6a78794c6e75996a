"""Command lines that nobody thought of: what is wrong with them is one line of ours, and a token is
on no line.
"""

import json

import pytest
from fuzz_cases import accepted, inputs
from hypothesis import given
from hypothesis import strategies as st

from dystress_text import loss
from dystress_text.cli.command_line import exit_code
from dystress_text.config.arguments import parse
from dystress_text.programs import train
from vision.train import parse as parse_vision

LIKELY = (
    "true", "false", "no", "null", "~", "1", "-1", "0", "64", "1e-4", "nan", "inf", "-inf", "1e400", "1_000", "0x10",
    "9" * 30, "9" * 5000, "٣", "", " ", "macl()", "queue(0.1)", "infonce(hcl(0.5, beta=1e999))", "dcl(-0.1)",
    "infonce(" * 99, "x.y(1)", "a\nb", "--", "paper", "quickstart", "cifar10", "-", "=", "%s", "{}", "$(touch x)",
    "`touch x`", "; touch x", "@file", "\x1b[2J",
)  # fmt: skip
VALUES = (
    st.sampled_from(LIKELY)
    | st.floats().map(str)
    | st.text(max_size=30)
    | st.text("-=%@", max_size=5)
)


@st.composite
def command_lines(draw, names):
    words = []
    for _ in range(draw(st.integers(0, 5))):
        name = draw(st.sampled_from([*names, "preset", "x", "no_supervised"]))
        value = draw(VALUES)
        shape = draw(st.integers(0, 5))
        words += (
            [f"--{name}={value}"] if shape < 3 else [f"--{name}", value] if shape < 5 else [value]
        )
    return words


@pytest.mark.parametrize("parser", [parse, parse_vision], ids=["text", "vision"])
def test_command_lines(parser):
    @inputs(200)
    @given(command_lines(sorted(parser([]).options())))
    def check(argv):
        settings = accepted(parser, argv)
        if settings is not None:
            json.dumps(settings.options())
            assert str(loss(str(settings.loss))) == str(settings.loss)

    check()


@pytest.mark.parametrize(
    "word",
    ["--output_dir={}", "--train_file=https://user:{}@huggingface.co/x", "--preset={}", "{}"],
)
@pytest.mark.parametrize("token", ["hf_" + "aB3" * 12, "a-secret-of-mine"])
def test_a_token_is_no_setting_and_is_not_printed(word, token, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a-secret-of-mine")
    assert exit_code("dystress train", lambda: bool(parse([word.format(token)]))) == 2
    shown = capsys.readouterr()
    assert "dystress train: error: " in shown.err
    assert token not in shown.out + shown.err


def test_a_run_does_not_tell_its_token(flags, tmp_path, monkeypatch, capfd):
    """On no line that is printed, and in no file."""
    token = "hf_" + "aB3dE5" * 6
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("tensorboard")
    assert train.main([*flags, "--max_steps=2", "--save_steps=1", "--report_to=tensorboard"]) == 0
    shown = capfd.readouterr()
    assert "sentences/s" in shown.out
    assert token not in shown.out + shown.err
    written = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())
    assert len(written) > 10_000
    assert list(tmp_path.glob("*/tracker-logs/**/events.*"))
    assert token.encode() not in written
