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
from pathlib import PurePosixPath
from urllib.parse import parse_qs

import pytest

COMMIT = "1" * 40
OID = "0" * 40


def tar_of(files, kind=tarfile.REGTYPE):
    """Return an archive of files, or of something else under their names."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "/etc/passwd"
            if kind == tarfile.REGTYPE:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def entries_of(contents):
    """Return files and folders of a repository, as the hub lists them."""
    folders = {str(parent) for name in contents for parent in PurePosixPath(name).parents}
    entries = []
    for name in sorted(folders - {"."}):
        entries.append({"type": "directory", "path": name, "oid": OID, "size": 0})
    for name, content in contents.items():
        entries.append({"type": "file", "path": name, "oid": OID, "size": len(content)})
    return entries


class Handler(BaseHTTPRequestHandler):
    """Serve ``files`` and take uploads, with the failures that ``faults`` asks for."""

    def do_POST(self):
        path = self.path.split("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "/paths-info/" in path:
            return self._paths_info(path, parse_qs(body.decode())["paths"])
        self.server.faults["token"] = self.headers.get("Authorization")
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if "/preupload/" in path:
            modes = []
            for file in json.loads(body)["files"]:
                mode = {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                modes.append(mode)
            return self._json({"files": modes})
        if "/commit/" in path:
            return self._commit(path, body)
        return self._json({"errors": [], "warnings": []})  # of a card's metadata

    def _paths_info(self, path, wanted):
        for name, contents in self.server.files.items():
            if path.startswith(f"/api/datasets/{name}/"):
                found = [entry for entry in entries_of(contents) if entry["path"] in wanted]
                return self._json(found)
        return self._missing()

    def _create(self, repository):
        faults = self.server.faults
        if faults.get("create"):
            return self._reply(faults["create"], b"no")
        faults["made"] = repository
        page = f"{self.server.address}/{repository['organization']}/{repository['name']}"
        return self._json({"url": page})

    def _commit(self, path, body):
        faults = self.server.faults
        if faults.get("commit"):
            return self._reply(faults["commit"], f"no, {faults['token']}".encode())
        uploaded = {}
        for entry in map(json.loads, body.splitlines()):
            if entry["key"] == "file":
                content = base64.b64decode(entry["value"]["content"])
                uploaded[entry["value"]["path"]] = content
        self.server.files[path.split("/commit/")[0].removeprefix("/api/")] = uploaded
        page = f"{self.server.address}/someone/model/commit/1"
        return self._json({"success": True, "commitOid": COMMIT, "commitUrl": page})

    def _whoami(self):
        faults = self.server.faults
        if faults.get("whoami"):
            return self._reply(faults["whoami"], b"no")
        role = {"accessToken": {"role": faults.get("role", "write")}}
        return self._json({"name": "me", "orgs": [{"name": "someone"}], "auth": role})

    def do_GET(self):
        if self.path == "/api/whoami-v2":
            return self._whoami()
        for key, contents in self.server.files.items():
            name = key.removeprefix("models/")
            is_model = name != key
            api = f"/api/models/{name}" if is_model else f"/api/datasets/{name}"
            page = f"/{name}/" if is_model else f"/datasets/{name}/"
            if self.path.startswith(f"{api}/tree/"):
                return self._json(entries_of(contents))
            if self.path.startswith(api):
                siblings = [{"rfilename": file} for file in contents]
                return self._json({"id": name, "sha": COMMIT, "siblings": siblings})
            if self.path.startswith(page):
                _, _, file = self.path.removeprefix(f"{page}resolve/").partition("/")
                if file in contents:
                    return self._file(contents[file])
                return self._missing("EntryNotFound")
        if "xetEnabled" in self.path:  # huggingface_hub before 1.0 asks before an upload
            return self._json({"id": "someone/model", "xetEnabled": False})
        return self._missing("RepoNotFound" if "/resolve/" in self.path else None)

    do_HEAD = do_GET

    def _file(self, content):
        faults = self.server.faults
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        headers = {
            "X-Repo-Commit": COMMIT,
            "ETag": tag,
            "X-Linked-ETag": tag,
            "X-Linked-Size": len(content),
            "Accept-Ranges": "bytes",
            "Content-Length": len(content) - start,
        }
        self._head(206 if "Range" in self.headers else 200, headers)
        if self.command == "HEAD":
            return
        faults.setdefault("starts", []).append(start)
        if faults.pop("cut", False):
            self.wfile.write(content[start : len(content) // 2])
            self.wfile.flush()
            self.connection.close()
        else:
            self.wfile.write(content[start:])

    def _json(self, content):
        self._reply(200, json.dumps(content).encode())

    def _missing(self, code=None):
        self._reply(404, b"no", {"X-Error-Code": code, "X-Repo-Commit": COMMIT} if code else {})

    def _reply(self, status, content, headers=()):
        kind = {"Content-Type": "application/json", "Content-Length": len(content)}
        self._head(status, kind | dict(headers))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def hub_server():
    """Yield the server's address, its files, and the faults that it should have.

    Files are those of data sets, ``files["OWNER/NAME"]``, and of models,
    ``files["models/OWNER/NAME"]``. An upload becomes a model of the files; ``faults`` then has the
    token and the settings of the repository. ``faults["whoami"]``, ``["create"]`` and ``["commit"]``
    are status codes, ``["role"]`` is that of the token, which is of ``me`` in the organisation
    ``someone``; ``["cut"]`` ends a download in the middle;
    ``["starts"]`` are the first bytes of the downloads. The library reads ten megabytes at a time
    and continues a download after the last complete part.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.files = {}
    server.faults = {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.address, server.files, server.faults
    server.shutdown()


@contextmanager
def with_hub(address: str, home, **more: str) -> Iterator[None]:
    """Make this process one that started in the server's environment.

    The libraries read the environment once, at import.
    """
    import datasets.config
    import huggingface_hub.constants
    import huggingface_hub.hf_api
    import transformers.utils.hub

    from dystress_text.io.hub import hub_reachable

    environment = {
        "HF_ENDPOINT": address,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(home),
        "NO_PROXY": "*",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_ETAG_TIMEOUT": "5",
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        **more,
    }
    read_once = (huggingface_hub.constants, datasets.config)
    before = [dict(vars(module)) for module in read_once]
    offline = environment["HF_HUB_OFFLINE"] == "1"
    url = address + "/{repo_id}/resolve/{revision}/{filename}"
    # huggingface_hub before 1.0 keeps sessions with the old settings
    forget_sessions = getattr(huggingface_hub.utils, "reset_sessions", bool)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
        downloads = huggingface_hub.file_download
        patch.setattr(downloads, "HUGGINGFACE_CO_URL_TEMPLATE", url, raising=False)
        patch.setattr(transformers.utils.hub, "_is_offline_mode", offline, raising=False)
        patch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)  # of another address
        hub_reachable.cache_clear()
        try:
            for module in read_once:
                importlib.reload(module)
            forget_sessions()
            yield
        finally:
            forget_sessions()
            hub_reachable.cache_clear()
            for module, values in zip(read_once, before, strict=True):
                vars(module).update(values)
