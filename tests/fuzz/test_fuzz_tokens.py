"""An access token is nowhere but where the hub's own library keeps it: in no file, and on no line that is printed."""

import subprocess
import sys

import pytest
from hub_server import hub_environment, hub_server

from dystress_text import train as program

TOKEN = "hf_" + "aB3dE5" * 6


def everything(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_run_does_not_tell_its_token(flags, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    assert program.main([*flags, "--max_steps=2", "--save_steps=1", "--report_to=tensorboard"]) == 0
    shown = capfd.readouterr()
    assert "sentences/s" in shown.out
    assert TOKEN not in shown.out + shown.err
    written = everything(tmp_path)
    assert len(written) > 10_000
    assert TOKEN.encode() not in written


@pytest.mark.slow
def test_a_download_that_fails_does_not_tell_the_token(flags, tmp_path):
    with hub_server() as (address, _, faults):
        faults["status"] = 401
        environment = hub_environment(address, tmp_path / "home") | {"HF_TOKEN": TOKEN, "HF_HUB_VERBOSITY": "debug"}
        words = [*flags, "--model_name_or_path=owner/model", f"--output_dir={tmp_path / 'other'}"]
        command = [sys.executable, program.__file__, *words]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ended.returncode == 2
    assert "cannot load 'owner/model'" in ended.stderr
    assert TOKEN not in ended.stdout + ended.stderr
    assert TOKEN.encode() not in everything(tmp_path)
