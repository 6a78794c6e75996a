"""An access token is nowhere but where the hub's own library keeps it: in no file, and on no line that is printed."""

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
