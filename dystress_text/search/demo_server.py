"""A page on 127.0.0.1 that searches an index: its answers, and the requests that it refuses.

The server listens on the loopback address alone. A request's Host header must name that address, so a page elsewhere
cannot reach the server by a name that resolves to it. A search must come from the page itself or be typed.
"""

from __future__ import annotations

import hashlib
import re
import socketserver
import sys
import threading
from base64 import b64encode
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import torch

from dystress_text.cli.command_line import one_line
from dystress_text.core.rule import PairRule
from dystress_text.files.whole import to_json
from dystress_text.search.sentence_index import SentenceIndex
from dystress_text.search.sentence_vectors import unit_vectors
from dystress_text.search.stored_vectors import Float32

LOOPBACK = "127.0.0.1"
MAX_TEXT = 1000  # characters of a sentence
MAX_TARGET = 16_384  # bytes of a request's path and query: two such sentences in any script
SECONDS = 10  # that a client may take to send its request
POINTS = 201  # of the curve

Json = dict[str, Any]


class Refused(Exception):
    """A request that is answered with an error: a status and one line."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Demo:
    """What the page shows.

    Attributes:
        name: of the model.
        index: to search, with the model.
        searched: a line that says which sentences the index holds.
        temperature: of the run; depends on the similarity alone. None if there is none.
        told: a line that says what the temperature is, or why there is none.
        top_k: neighbours of a sentence.
    """

    name: str
    index: SentenceIndex
    searched: str
    temperature: PairRule | None
    told: str
    top_k: int = 10
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def about(self) -> Json:
        """What is the same for every search; ``curve`` holds pairs of similarity and temperature."""
        similarities = np.linspace(-1, 1, POINTS).tolist()
        curve = [[s, tau] for s in similarities if (tau := self.tau(s)) is not None]
        pairs = self.index.random_pairs
        about = {"name": self.name, "searched": self.searched, "told": self.told, "curve": curve}
        return about | {"random_pairs": None if pairs is None else pairs.about()}

    def search(self, text: str, second: str = "") -> Json:
        """The neighbours of a sentence, best first, and its similarity to a second one, if there is one.

        Raises:
            Refused: there is no sentence, or one is too long.
        """
        text, second = text.strip(), second.strip()
        if not text:
            raise Refused(HTTPStatus.BAD_REQUEST, "type a sentence")
        if max(len(text), len(second)) > MAX_TEXT:
            raise Refused(HTTPStatus.BAD_REQUEST, f"a sentence may have {MAX_TEXT:,} characters")
        vectors = self._vectors([text, second] if second else [text])
        found = self.index.matches(vectors[:1], self.top_k)[0]
        similarities = np.array([match.score for match in found])
        if self.index.stored.dtype == "binary":  # a score of signs is not a similarity
            similarities = (self._vectors([match.sentence for match in found]).astype(np.float64) * vectors[0]).sum(1)
        order = np.argsort(-similarities, kind="stable")
        matches = [{"sentence": found[i].sentence, **self._pair(float(similarities[i]))} for i in order]
        pair = self._pair(float(vectors[0].astype(np.float64) @ vectors[1])) if second else None
        return {"text": text, "second": second, "matches": matches, "pair": pair}

    def tau(self, similarity: float) -> float | None:
        """The temperature at a similarity, which rounding may have put beyond 1."""
        if self.temperature is None:
            return None
        return float(self.temperature(torch.tensor(similarity, dtype=torch.float64).clamp(-1, 1)))

    def _pair(self, similarity: float) -> Json:
        pairs = self.index.random_pairs
        rate = None if pairs is None else pairs.said(pairs.rate_of(similarity))
        return {"similarity": similarity, "tau": self.tau(similarity), "false_alarm": rate}

    def _vectors(self, sentences: list[str]) -> Float32:
        with self._one_at_a_time:  # tokenizers are not thread-safe
            return unit_vectors(self.index.model, sentences, batch_size=64)


class DemoServer(ThreadingHTTPServer):
    """Serves a demo on the loopback address.

    Args:
        demo: what to show.
        port: 0 for any free one.

    Attributes:
        port: of the server.

    Raises:
        OSError: the port is in use, or this user may not use it.
    """

    def __init__(self, demo: Demo, port: int = 0) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.demo = demo
        self.port = int(self.server_address[1])
        self.hosts = {f"{name}:{self.port}" for name in (LOOPBACK, "localhost")}
        if self.port == 80:
            self.hosts |= {LOOPBACK, "localhost"}

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.port}/"

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer would look up a host name
        self.server_name, self.server_port = LOOPBACK, int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: DemoServer
    timeout = SECONDS
    server_version, sys_version = "dystress-text", ""

    def do_GET(self) -> None:
        """Answer with the page, or with JSON."""
        try:
            kind, body = self._answer()
            self._send(HTTPStatus.OK, kind, body)
        except Refused as refused:
            self._refuse(refused.status, str(refused))
        except (ConnectionError, TimeoutError):  # the client has closed the connection
            self.close_connection = True
        except Exception as error:  # of the model or any library; the server goes on
            message = one_line(f"the search failed: {error or type(error).__name__}")
            print(f"demo: {message}", file=sys.stderr, flush=True)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, message)

    def _answer(self) -> tuple[str, bytes]:
        if (self.headers.get_all("Host") or [""]) not in [[host] for host in self.server.hosts]:
            raise Refused(HTTPStatus.FORBIDDEN, f"this server is {self.server.url} and goes by no other name")
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            raise Refused(HTTPStatus.BAD_REQUEST, "a request has no body")
        if len(self.path) > MAX_TARGET:
            raise Refused(HTTPStatus.REQUEST_URI_TOO_LONG, f"an address may have {MAX_TARGET:,} characters")
        path, _, query = self.path.partition("?")
        if path == "/":
            return "text/html; charset=utf-8", page()
        if self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise Refused(HTTPStatus.FORBIDDEN, "another page may not search here")
        match path:
            case "/about":
                answer = self.server.demo.about()
            case "/search":
                asked = _fields(query)
                answer = self.server.demo.search(asked.get("q", ""), asked.get("second", ""))
            case _:
                raise Refused(HTTPStatus.NOT_FOUND, "there are /, /about and /search?q=")
        return "application/json", to_json(answer).encode()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer as JSON what the base class refuses, such as another method."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status, message = HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered"
        self._refuse(status, message or status.phrase)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True
        self._send(status, "application/json", to_json({"error": message}).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        headers = _headers() | {"Content-Type": kind, "Content-Length": str(len(body))}
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: searches are private."""


def _fields(query: str) -> dict[str, str]:
    try:
        return {name: values[0] for name, values in parse_qs(query, max_num_fields=4).items()}
    except ValueError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "too many fields") from error


@cache
def page() -> bytes:
    """The page, the same for every demo."""
    return files("dystress_text.search").joinpath("demo.html").read_bytes()


@cache
def _headers() -> dict[str, str]:
    """Headers of every answer. The policy allows the page's own script and style, by checksum, and nothing else."""
    checksums = {}
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page().decode(), re.DOTALL)
        checksums[tag] = f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
    policy = (
        f"default-src 'none'; script-src {checksums['script']}; style-src {checksums['style']}; img-src data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
