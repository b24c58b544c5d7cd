"""A model hub on this machine, with as much of the real one's protocol as a download needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves models: a name, and the bytes of each file."""

    daemon_threads = True

    def __init__(self, models: dict[str, dict[str, bytes]], gated: frozenset[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.gated = gated
        self.asked: list[str] = []  # about models, not for their files
        self.sent: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving(
    models: dict[str, dict[str, bytes]], gated: frozenset[str] = frozenset()
) -> Iterator[Hub]:
    with Hub(models, gated) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass

    def _answer(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        owner, name, *rest = parts[2:] if api else parts
        repo = f"{owner}/{name}"
        if api:
            self.server.asked.append("/".join(rest[:1]) or "info")
        files = self.server.models.get(repo)
        if files is None:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        if api and rest[:1] == ["tree"]:
            listing = [_entry(path, data) for path, data in files.items()]
            return self._send(200, json.dumps(listing).encode())
        if api:
            if rest[:1] == ["revision"] and rest[1] not in ("main", COMMIT):
                return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return self._send(200, json.dumps({"id": repo, "sha": COMMIT}).encode())
        if repo in self.server.gated:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        path = "/".join(rest[2:])  # after resolve/COMMIT
        if self.command == "GET":
            self.server.sent.append(path)
        headers = {"ETag": f'"{_oid(files[path])}"', "X-Repo-Commit": COMMIT}
        return self._send(200, files[path], headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def _entry(path: str, data: bytes) -> dict[str, str | int]:
    return {"type": "file", "path": path, "size": len(data), "oid": _oid(data)}
