"""Finding data: prepared, embedded, from a hub on loopback, or nowhere."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.files import places
from dystress_text.files.places import data_root
from dystress_text.simcse.training_text import wiki1m

STSB = b"g\tf\ty\t1\t3.5\tone\ttwo\ng\tf\ty\t2\t5\tthree\tfour\n"


def archive(name="./STS/STSBenchmark/sts-dev.csv", kind=tarfile.REGTYPE):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for member, content in (("./STS/other.txt", b"x"), (name, STSB)):
            info = tarfile.TarInfo(member)
            info.size, info.type = len(content), kind if member == name else tarfile.REGTYPE
            info.linkname = "/etc/passwd"
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def hub():
    """A server that speaks enough of the hub's protocol for hf_hub_download; yields its address and its files."""
    files = {}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self._answer(body=False)

        def do_GET(self):
            self._answer(body=True)

        def _answer(self, body):
            prefix = "/datasets/princeton-nlp/datasets-for-simcse/resolve/main/"
            content = files.get(self.path.removeprefix(prefix))
            self.send_response(404 if content is None else 200)
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", f'"{hashlib.sha1(content or b"").hexdigest()}"')
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if body and content is not None:
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
    server.server_close()


def ask(expression, tmp_path, endpoint):
    """Evaluate an expression in a fresh process that knows this hub; what it prints, and its error line."""
    code = (
        "from dystress_text.errors import UserError\nfrom dystress_text.simcse.training_text import wiki1m\n"
        "from dystress_text.evaluation.catalogue import eval_pairs\n"
        f"try: print({expression})\nexcept UserError as error: print('error:', error)"
    )
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1", "DYSTRESS_DATA": str(tmp_path / "none"), "DYSTRESS_CACHE": str(tmp_path / "cache"),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_wiki1m_comes_from_the_hub(hub, tmp_path):
    endpoint, files = hub
    files["wiki1m_for_simcse.txt"] = b"one sentence\nanother one\n"
    assert ask("wiki1m().read_text()", tmp_path, endpoint) == "one sentence\nanother one"


def test_stsb_dev_comes_out_of_the_hubs_archive(hub, tmp_path):
    endpoint, files = hub
    files["senteval.tar"] = archive()
    assert ask("eval_pairs('stsb_dev').first", tmp_path, endpoint) == "('one', 'three')"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "Three ways on"), (b"no archive", "Three ways on"), (archive(kind=tarfile.SYMTYPE), "does not hold"),
     (archive()[:700], "Three ways on"), (archive("./STS/elsewhere.csv"), "does not hold")],
    ids=["404", "no archive", "symbolic link", "truncated", "without the file"],
)  # fmt: skip
def test_a_bad_archive_is_one_line(hub, tmp_path, content, words):
    endpoint, files = hub
    if content is not None:
        files["senteval.tar"] = content
    said = ask("eval_pairs('stsb_dev')", tmp_path, endpoint)
    assert said.startswith("error:")
    assert words in said
    assert "\n" not in said


def test_no_hub_is_said_at_once(tmp_path):
    assert "Three ways on" in ask("wiki1m()", tmp_path, "http://no-such-host.invalid")


def test_without_a_checkout_data_lie_in_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "CHECKOUT", None)
    monkeypatch.delenv("DYSTRESS_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_root() == tmp_path / "dystress-text"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".local" / "share" / "dystress-text"


def test_prepared_data_come_first(tmp_path, monkeypatch):
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("elsewhere").name == "elsewhere"
    (tmp_path / "wiki1m").mkdir()
    (tmp_path / "wiki1m" / "wiki1m_for_simcse.txt").write_text("x\n")
    assert wiki1m() == tmp_path / "wiki1m" / "wiki1m_for_simcse.txt"
    folder = tmp_path / "senteval" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    (folder / "sts-dev.csv").write_bytes(STSB)
    assert len(eval_pairs("stsb_dev")) == 2


def test_unknown_evaluation_set():
    with pytest.raises(UserError, match=r"--eval_set.*stsb_dev, mini_sts, none"):
        eval_pairs("sts99")
