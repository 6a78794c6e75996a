"""The demo: its answers over a socket, the requests that it refuses, and the page in a browser."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import numpy as np
import psutil
import pytest
from conftest import make_sentences
from page_cases import browser
from scipy.stats import beta
from search_cases import Drawn, saved_model, unit

from dystress_text.core.temperature import ShiftedCosineTemperature
from dystress_text.demo import main
from dystress_text.evaluation.random_pairs import random_pairs
from dystress_text.evaluation.readers import read_sts_benchmark
from dystress_text.search import demo_server
from dystress_text.search.demo import default_sentences, temperature_of
from dystress_text.search.demo_server import Demo, DemoServer
from dystress_text.search.sentence_index import SentenceIndex

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "docs" / "study"
PRESET = "sts-shifted-0.4-0.05-0.07-seed-0"
SENTENCES = [f"text {i}" for i in range(60)] + [
    "<img src=x onerror=alert(1)>",
    "</script><b>bold</b> & \"quoted\" 'too'",
]


PAIRS = random_pairs(np.random.default_rng(0).standard_normal((1000, 16)), "drawn directions")


@contextlib.contextmanager
def served(dtype="fp32", top_k=10, temperature=True, sentences=SENTENCES, pairs=None):
    tau = ShiftedCosineTemperature(0.05, 0.07, -0.4) if temperature else None
    index = SentenceIndex.build(Drawn(), sentences, dtype=dtype, random_pairs=pairs)
    with DemoServer(Demo("out", index, "62 texts", tau, "Temperature: told.", top_k)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server():
    with served() as running:
        yield running


def ask(server, target="/", method="GET", headers=None, body=None):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, target, body=body, headers=headers or {})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


def search(server, q, **more):
    status, _, body = ask(server, "/search?" + urllib.parse.urlencode({"q": q, **more}))
    assert status == 200, body
    return json.loads(body)


def cosines(query, sentences):
    vectors = unit(Drawn().encode([query, *sentences], batch_size=1, show_progress_bar=False).astype(np.float64))
    return vectors[1:] @ vectors[0]


def expected_tau(s):
    """Algorithm 2 of the paper, with its default scale."""
    return np.where(s > 0.4, 0.07, 0.05 + 0.01 * (1 + np.cos(np.pi * (s - 0.4) / 0.7)))


@pytest.mark.parametrize("dtype", ["fp32", "int8", "binary"])
def test_neighbours_with_similarity_and_temperature(dtype):
    with served(dtype, top_k=len(SENTENCES), pairs=PAIRS) as server:
        answer = search(server, " text 7 ", second="something else")
    found = [match["sentence"] for match in answer["matches"]]
    truth = cosines("text 7", found)
    assert sorted(found) == sorted(SENTENCES)
    assert found[0] == "text 7"
    similarities = np.array([match["similarity"] for match in answer["matches"]])
    assert similarities == pytest.approx(truth, abs=0.02 if dtype == "int8" else 1e-6)  # of signs too: encoded again
    assert (np.diff(similarities) <= 0).all()
    assert [match["tau"] for match in answer["matches"]] == pytest.approx(expected_tau(similarities), abs=1e-9)
    assert answer["pair"]["similarity"] == pytest.approx(cosines("text 7", ["something else"])[0], abs=1e-6)
    assert answer["pair"]["tau"] == pytest.approx(expected_tau(answer["pair"]["similarity"]), abs=1e-9)
    assert (answer["text"], answer["second"]) == ("text 7", "something else")
    rates = [float(match["false_alarm"].removeprefix("<")) for match in answer["matches"]]
    assert rates == pytest.approx(beta.sf((1 + similarities) / 2, 7.5, 7.5).clip(PAIRS.finest), rel=0.2)


def test_what_holds_for_every_search(server):
    status, _, body = ask(server, "/about")
    about = json.loads(body)
    assert status == 200
    assert (about["name"], about["searched"], about["told"]) == ("out", "62 texts", "Temperature: told.")
    curve = np.array(about["curve"])
    assert (curve[0, 0], curve[-1, 0]) == (-1, 1)
    assert curve[:, 1] == pytest.approx(expected_tau(curve[:, 0]), abs=1e-9)
    assert search(server, "text 1")["pair"] is None
    with served(temperature=False) as without:
        assert json.loads(ask(without, "/about")[2])["curve"] == []
        assert {match["tau"] for match in search(without, "text 1")["matches"]} == {None}


def test_many_at_once(server):
    answers = {}
    threads = [
        threading.Thread(target=lambda i=i: answers.update({i: search(server, f"text {i}")["matches"][0]["sentence"]}))
        for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: f"text {i}" for i in range(20)}


@pytest.mark.parametrize(
    ("target", "how", "status", "message"),
    [
        ("/search", {}, 400, "type a sentence"),
        ("/search?q=+%20", {}, 400, "type a sentence"),
        ("/search?q=" + "x" * 1001, {}, 400, "a sentence may have 1,000 characters"),
        ("/search?q=x&second=" + "x" * 1001, {}, 400, "a sentence may have 1,000 characters"),
        ("/search?q=" + "x" * 16_384, {}, 414, "an address may have 16,384 characters"),
        ("/search?q=" + "x" * 70_000, {}, 414, "URI"),
        ("/search?" + "&".join(f"a{i}=1" for i in range(9)), {}, 400, "too many fields"),
        ("/none", {}, 404, "there are /, /about and /search"),
        ("/../run.json", {}, 404, "there are /"),
        ("/", {"headers": {"Host": "rebound.example:80"}}, 403, "goes by no other name"),
        ("/about", {"headers": {"Host": "127.0.0.1"}}, 403, "goes by no other name"),
        ("/search?q=x", {"headers": {"Sec-Fetch-Site": "cross-site"}}, 403, "another page may not search"),
        ("/search?q=x", {"method": "POST"}, 405, "only GET is answered"),
        ("/", {"method": "DELETE"}, 405, "only GET is answered"),
        ("/search?q=x", {"body": "y"}, 400, "a request has no body"),
    ],
)  # fmt: skip
def test_refusals_are_a_plain_line(server, target, how, status, message):
    answered, headers, body = ask(server, target, **how)
    assert answered == status
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert message in json.loads(body)["error"]
    assert ("Allow" in headers) == (status == 405)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\x16\x03\x01\x02\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_no_request_as_browsers_make_them_gets_the_page(server, raw):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(raw)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b'{"error": ' in answer
    assert b"<html" not in answer
    assert search(server, "text 3")["matches"][0]["sentence"] == "text 3"


def test_a_failing_search_is_a_plain_line_and_the_server_goes_on(capsys):
    class Failing(Drawn):
        def encode(self, sentences, /, **options):
            if "fail" in sentences:
                raise RuntimeError("out of\nmemory")
            return super().encode(sentences, **options)

    with served() as server:
        server.demo = Demo("out", SentenceIndex.build(Failing(), SENTENCES), "", None, "")
        status, _, body = ask(server, "/search?q=fail")
        assert (status, json.loads(body)) == (500, {"error": "the search failed: out of\\nmemory"})
        assert search(server, "text 3")["matches"][0]["sentence"] == "text 3"
    assert capsys.readouterr().err == "demo: the search failed: out of\\nmemory\n"


def test_the_page_runs_what_stands_in_it_and_nothing_else(server):
    status, headers, body = ask(server, "/?q=text+1", headers={"Host": f"localhost:{server.port}"})
    text, policy = body.decode(), headers["Content-Security-Policy"]
    assert status == 200
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert b64encode(sha256(content.encode()).digest()).decode() in policy
    assert set(re.findall(r"\w+://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|insertAdjacent|document\.write|eval\(| on\w+=| style=", text)


def test_only_this_machine_reaches_it(server):
    assert server.server_address[0] == "127.0.0.1"
    addresses = [a.address for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET]
    for address in {*addresses} - {"127.0.0.1"}:
        with pytest.raises(OSError), socket.create_connection((address, server.port), timeout=2):  # noqa: PT011
            pass


def test_the_temperature_is_that_of_the_run(tmp_path):
    assert (
        repr(temperature_of(STUDY / PRESET)[0]) == json.loads((STUDY / PRESET / "run.json").read_text())["temperature"]
    )
    for name, content, told in (
        ("none", None, "has no run.json of a text run"),
        ("vision", {"program": "vision/train.py"}, "has no run.json of a text run"),
        ("damaged", {"program": "dystress_text/train.py"}, "run.json does not say it"),
        ("macl", json.loads((STUDY / "sts-macl-seed-0" / "run.json").read_text()), "changes with the run"),
    ):
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "run.json").write_text(json.dumps(content))
        temperature, line = temperature_of(tmp_path / name)
        assert temperature is None
        assert told in line


def test_what_is_searched_by_default(data_dir, monkeypatch, tmp_path):
    monkeypatch.setenv("DYSTRESS_DATA", str(data_dir))
    sentences, told = default_sentences()
    assert told == "80 sentences of STS-B dev"
    assert sorted(sentences) == sorted(make_sentences(80, seed=9))
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path / "none"))
    pairs = read_sts_benchmark(ROOT / "dystress_text" / "embedded" / "senteval" / "STS" / "MiniSTS" / "mini-sts.csv")
    assert default_sentences() == (pairs.sentences, f"{len(pairs.sentences):,} sentences of mini-STS")


@pytest.fixture(scope="module")
def run(tiny_bert, tmp_path_factory):
    """A run's folder: a model and its record."""
    folder = saved_model(tiny_bert, tmp_path_factory.mktemp("demo") / "out")
    shutil.copy(STUDY / PRESET / "run.json", folder)
    return folder


@pytest.mark.slow  # a program of its own
def test_the_program_serves_until_ctrl_c(run, text_file, capsys):
    command = [sys.executable, "-m", "dystress_text.demo", run, "--file", text_file, "--top_k", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        line = process.stdout.readline()
        url, port = re.match(r"(http://127\.0\.0\.1:(\d+)/) searches 200 sentences of sentences\.txt\.", line).groups()
        first = text_file.read_text().splitlines()[0]
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)) as connection:
            connection.request("GET", "/search?" + urllib.parse.urlencode({"q": first}))
            matches = json.loads(connection.getresponse().read())["matches"]
        assert [matches[0]["sentence"], len(matches)] == [first, 3]
        assert matches[0]["tau"] == pytest.approx(0.07)
        assert main([str(run), "--file", str(text_file), "--port", port]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error == f"dystress demo: error: --port: cannot listen on {port}: Address already in use"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "dystress demo: ended"
    assert "Traceback" not in errors
    assert (url, output) == (f"http://127.0.0.1:{port}/", "")


def test_what_the_program_refuses(run, tiny_bert, text_file, tmp_path, capsys):
    empty = tmp_path / "empty.txt"
    empty.touch()
    SentenceIndex.build(Drawn(), SENTENCES, folder=tmp_path / "idx")
    for arguments, message in (
        ([tmp_path / "none"], "model: cannot load"),
        ([tiny_bert], "not a sentence-transformers folder"),
        ([run, "--file", empty], "no usable sentence"),
        ([run, "--index", tmp_path / "none"], "holds no index"),
        ([run, "--index", tmp_path / "idx"], "was built with another model"),
        ([run, "--index", tmp_path / "idx", "--file", text_file], "not allowed with"),
        ([run, "--port", "65536"], "a number from 0 to 65535"),
        ([run, "--top_k", "0"], "a number from 1"),
        ([], "required: model"),
    ):
        assert main([str(argument) for argument in arguments]) == 2
        error = capsys.readouterr().err.splitlines()
        assert message in error[-1]
        assert error[-1].startswith("dystress demo: error: ")


# in a browser


def look(program, address, width, folder, *options):
    command = [
        program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={folder}/profile", "--hide-scrollbars",
        f"--window-size={width},1600", "--virtual-time-budget=8000", *options, address,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


@pytest.fixture
def measured(monkeypatch):
    """The page with one more line in its script, which puts its widths where --dump-dom shows them."""
    measure = (
        "new MutationObserver(() => { const e = document.documentElement;"
        "e.dataset.wide = e.scrollWidth > e.clientWidth;"
        "e.dataset.circles = document.querySelectorAll('circle').length; }).observe(byId('status'), {childList: true});"
    )
    changed = demo_server.page().replace(b"</script>\n</body>", measure.encode() + b"</script>\n</body>")
    monkeypatch.setattr(demo_server, "page", lambda: changed)
    demo_server._headers.cache_clear()
    yield
    demo_server._headers.cache_clear()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_a_linked_search(measured, tmp_path, width):
    program = browser()
    words = [*SENTENCES, "unbroken" * 100]
    with served(top_k=len(words), sentences=words, pairs=PAIRS) as server:
        address = server.url + "?q=text+5&second=text+9"
        dom = look(program, address, width, tmp_path, "--dump-dom")
        shot = tmp_path / f"demo-{width}.png"
        look(program, address, width, tmp_path, f"--screenshot={shot}")
    rows = re.findall(r'<tr><th scope="row"><a href="([^"]*)">(.*?)</a></th>' + 3 * "<td>(.*?)</td>" + "</tr>", dom)
    assert len(rows) == len(words)
    assert rows[0] == ("?q=text+5&amp;second=text+9", "text 5", "1.000", "&lt;2.0e-04", "0.0700")
    assert "&lt;img src=x onerror=alert(1)&gt;" in [row[1] for row in rows]
    assert "<img" not in dom
    assert "<b>bold" not in dom
    assert f"{len(words)} neighbours; the nearest has similarity 1.000." in dom
    assert "The two sentences: similarity" in dom
    assert "499,500 random pairs of 1,000 sentences of drawn directions." in dom
    assert re.search(rf'<html[^>]* data-wide="false" data-circles="{len(words)}"', dom)
    assert shot.stat().st_size > 10_000


def test_a_browser_shows_what_went_wrong(tmp_path):
    program = browser()
    with served() as server:
        dom = look(program, server.url + "?q=" + "x" * 1001, 390, tmp_path, "--dump-dom")
        assert '<p id="status" class="bad">a sentence may have 1,000 characters</p>' in dom
        empty = look(program, server.url, 390, tmp_path, "--dump-dom")
    assert "Searched: 62 texts." in empty
    assert re.search(r'<section id="found" hidden', empty)
    assert "<polyline" in empty
    assert os.listdir(tmp_path) == ["profile"]
