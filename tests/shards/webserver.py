"""A web server on this machine that serves a folder, ranges and all, and can misbehave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Literal

Manner = Literal["ranges", "whole", "cut off", "refused"]


class WebServer(ThreadingHTTPServer):
    """``served`` is what it sent: the name of each file asked for, and how many bytes of it."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.served: list[tuple[str, int]] = []
        self.manner: Manner = "ranges"  # in which it serves tars


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def do_GET(self) -> None:
        path = self.server.folder / self.path.lstrip("/")
        manner = self.server.manner if path.suffix == ".tar" else "ranges"
        if not path.is_file():
            return self.send_error(404)
        if manner == "refused":
            return self.send_error(503)
        data = path.read_bytes()
        asked = self.headers["Range"]
        if asked and manner != "whole":
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            if first >= len(data):
                return self.send_error(416)
            part = data[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        else:
            part = data
            self.send_response(200)
        self.server.served.append((path.name, len(part)))
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part[: len(part) // 2] if manner == "cut off" else part)
        return None

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[WebServer]:
    """Serve a folder for a while."""
    with WebServer(folder) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
