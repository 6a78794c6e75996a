"""A server on loopback that speaks enough of the hub's protocol for an upload of a folder."""

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def upload_server(status=200):
    """Yields the server's address, the repositories that were made (their settings) and the files that came, by path.

    ``status`` is what it answers to a commit.
    """
    made, files, tokens = [], {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            tokens.append(self.headers.get("Authorization"))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.split("?")[0]
            if path == "/api/repos/create":
                made.append(json.loads(body))
                name = f"{made[-1]['organization']}/{made[-1]['name']}"
                self._reply(200, {"url": f"{address}/{name}", "id": name})
            elif path == "/api/validate-yaml":
                self._reply(200, {"errors": [], "warnings": []})
            elif "/preupload/" in path:
                asked = [entry["path"] for entry in json.loads(body)["files"]]
                answer = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in asked]
                self._reply(200, {"files": answer})
            elif "/commit/" in path and status == 200:
                for line in body.splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                self._reply(
                    200, {"success": True, "commitOid": "1" * 40, "commitUrl": f"{address}/someone/model/commit/1"}
                )
            else:
                self._reply(status, {"error": f"no, {self.headers.get('Authorization')}"})

        def do_GET(self):
            self._reply(200, {"id": "someone/model", "sha": "0" * 40, "siblings": []})

        def _reply(self, code, content):
            content = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield address, made, files, tokens
    server.shutdown()
