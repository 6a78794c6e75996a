"""A token of the hub is neither printed nor written."""

import pytest

from dystress_text.cli.command_line import exit_code
from dystress_text.finetuning.arguments import parse
from dystress_text.programs import train


@pytest.mark.parametrize(
    "argument", ["--output_dir={}", "--train_file=https://user:{}@huggingface.co/x", "{}"]
)
@pytest.mark.parametrize("token", ["hf_" + "aB3" * 12, "a-secret-of-mine"])
def test_errors_hide_tokens(argument, token, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a-secret-of-mine")
    assert exit_code("dystress train", lambda: bool(parse([argument.format(token)]))) == 2
    shown = capsys.readouterr()
    assert token not in shown.out + shown.err


def test_runs_hide_tokens(flags, tmp_path, monkeypatch, capfd):
    token = "hf_" + "aB3dE5" * 6
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("tensorboard")
    more = ["--eval_set=none", "--max_steps=1", "--save_steps=1", "--report_to=tensorboard"]
    assert train.main([*flags, *more]) == 0
    shown = capfd.readouterr()
    assert token not in shown.out + shown.err
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert list(tmp_path.glob("*/tracker-logs/**/events.*"))
    assert token.encode() not in written
