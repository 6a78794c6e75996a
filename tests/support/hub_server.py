"""A server on loopback that speaks enough of the hub's protocol for huggingface_hub and datasets."""

import base64
import hashlib
import importlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest


def tar_of(files, kind=tarfile.REGTYPE):
    """An archive of files, or of something else under their names."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = (
                (len(content) if kind == tarfile.REGTYPE else 0),
                kind,
                "/etc/passwd",
            )
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def entries_of(contents):
    """Files and folders of a repository, as the hub lists them."""
    folders = {
        str(parent) for name in contents for parent in Path(name).parents if str(parent) != "."
    }
    listed = [
        {"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in sorted(folders)
    ]
    return listed + [
        {"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in contents.items()
    ]


@contextmanager
def hub_server():
    """Yields the server's address, its files, and what it should do wrong.

    An upload becomes a model of the files; ``faults`` then has the token and the settings of the
    repository. Files are those of data sets, ``files["OWNER/NAME"]``, and of models,
    ``files["models/OWNER/NAME"]``. The library reads ten megabytes at a time and takes up a
    download again after the last that was whole.
    """
    files, faults = {}, {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            """Facts about the paths of a data set that are asked for, or a step of an upload of a
            model.
            """
            path, body = (
                self.path.split("?")[0],
                self.rfile.read(int(self.headers.get("Content-Length", 0))),
            )
            if "/paths-info/" in path:
                repository = next(r for r in files if path.startswith(f"/api/datasets/{r}/"))
                asked = parse_qs(body.decode())["paths"]
                return self._json(
                    [entry for entry in entries_of(files[repository]) if entry["path"] in asked]
                )
            faults["token"] = self.headers.get("Authorization")
            if path == "/api/repos/create":
                if status := faults.get("create"):
                    return self._reply(status, b"no")
                faults["made"] = json.loads(body)
                return self._json(
                    {"url": f"{address}/{faults['made']['organization']}/{faults['made']['name']}"}
                )
            if "/preupload/" in path:
                asked = [entry["path"] for entry in json.loads(body)["files"]]
                modes = [
                    {"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in asked
                ]
                return self._json({"files": modes})
            if "/commit/" in path:
                if status := faults.get("commit"):
                    return self._reply(status, f"no, {faults['token']}".encode())
                entries = [json.loads(line) for line in body.splitlines()]
                sent = [entry["value"] for entry in entries if entry["key"] == "file"]
                files[path.split("/commit/")[0].removeprefix("/api/")] = {
                    value["path"]: base64.b64decode(value["content"]) for value in sent
                }
                page = f"{address}/someone/model/commit/1"
                return self._json({"success": True, "commitOid": "1" * 40, "commitUrl": page})
            return self._json({"errors": [], "warnings": []})  # of a card's head

        def do_GET(self):
            for key, contents in files.items():
                name, kind = (
                    key.removeprefix("models/"),
                    "models" if key.startswith("models/") else "datasets",
                )
                api = f"/api/{kind}/{name}"
                if self.path.startswith(f"{api}/tree/"):
                    return self._json(entries_of(contents))
                if self.path.startswith(api):
                    return self._json(
                        {
                            "id": name,
                            "sha": "1" * 40,
                            "siblings": [{"rfilename": n} for n in contents],
                        }
                    )
                page = f"/{name}/" if kind == "models" else f"/datasets/{name}/"
                if self.path.startswith(page):
                    file = self.path.removeprefix(f"{page}resolve/").partition("/")[
                        2
                    ]  # behind the revision
                    if file in contents:
                        return self._file(contents[file])
                    return self._reply(404, b"no", error="EntryNotFound")
            if "xetEnabled" in self.path:  # huggingface_hub before 1.0 asks before an upload
                return self._json({"id": "someone/model", "xetEnabled": False})
            return self._reply(
                404, b"no", error="RepoNotFound" if "/resolve/" in self.path else None
            )

        do_HEAD = do_GET

        def _file(self, content):
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
            tag = f'"{hashlib.sha256(content).hexdigest()}"'
            self._head(206 if "Range" in self.headers else 200, {
                "X-Repo-Commit": "1" * 40, "ETag": tag, "X-Linked-ETag": tag, "X-Linked-Size": len(content),
                "Accept-Ranges": "bytes", "Content-Length": len(content) - start,
            })  # fmt: skip
            if self.command == "GET":
                faults.setdefault("starts", []).append(start)
                sent = content.replace(b"one", b"two") if faults.get("swap") else content
                if faults.pop("cut", False):
                    self.wfile.write(sent[start : len(sent) // 2])
                    self.wfile.flush()
                    self.connection.close()
                    return
                self.wfile.write(sent[start:])

        def _json(self, content):
            self._reply(200, json.dumps(content).encode())

        def _head(self, status, headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, str(value))
            self.end_headers()

        def _reply(self, status, content, error=None):
            more = {"X-Error-Code": error, "X-Repo-Commit": "1" * 40} if error else {}
            self._head(
                status, {"Content-Type": "application/json", "Content-Length": len(content), **more}
            )
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield address, files, faults
    server.shutdown()


@contextmanager
def with_hub(address: str, home: Path, **more: str) -> Iterator[None]:
    """This process as a program that has started in the server's environment: the libraries read it
    once, at import.
    """
    import datasets.config
    import huggingface_hub.constants
    import huggingface_hub.hf_api
    import transformers.utils.hub

    from dystress_text.io.hub import hub_reachable

    read = (huggingface_hub.constants, datasets.config)
    before = [dict(vars(module)) for module in read]
    with pytest.MonkeyPatch.context() as patch:
        environment = {
            "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home), "NO_PROXY": "*",
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "5", "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        }  # fmt: skip
        for name, value in (environment | more).items():
            patch.setenv(name, value)
        patch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
        of_files = address + "/{repo_id}/resolve/{revision}/{filename}"  # which 0.x reads once
        patch.setattr(
            huggingface_hub.file_download, "HUGGINGFACE_CO_URL_TEMPLATE", of_files, raising=False
        )
        offline = (environment | more)["HF_HUB_OFFLINE"] == "1"
        patch.setattr(
            transformers.utils.hub, "_is_offline_mode", offline, raising=False
        )  # so does transformers 4
        hub_reachable.cache_clear()
        forget_sessions = getattr(
            huggingface_hub.utils, "reset_sessions", bool
        )  # of 0.x, which know the old setting
        try:
            for module in read:
                importlib.reload(module)
            forget_sessions()
            yield
        finally:
            forget_sessions()
            hub_reachable.cache_clear()
            for module, values in zip(read, before, strict=True):
                vars(module).update(values)
