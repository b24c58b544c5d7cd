"""A server in front of another that fails at the request it is told to.

    with flaky(moto) as proxy:
        use_s3(monkeypatch, proxy.url)
        proxy.fail(at=3, how="reset_after")

Faults that end in ``_after`` come when the other server has done what was asked: an answer is lost.
"""

from __future__ import annotations

import http.client
import socket
import struct
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Literal, get_args

How = Literal[
    "500",  # an answer that says so
    "500_after",
    "503",
    "503_after",
    "hang",  # no answer; set SHARDWRIGHT_TIMEOUT
    "hang_after",
    "reset",  # the connection breaks
    "reset_after",
    "truncated",  # half an answer
    "slow",  # the answer comes in pieces
]
HOWS: tuple[How, ...] = get_args(How)
_NOT_PASSED_ON = {"connection", "keep-alive", "transfer-encoding"}
_PIECES, _PAUSE = 20, 0.02  # of a slow answer; seconds


class Flaky(ThreadingHTTPServer):
    """``requests`` has the method and path of each request, in the order they came."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.behind = urllib.parse.urlsplit(server).netloc
        self.requests: list[str] = []
        self.failed: list[str] = []  # those that got a fault
        self.closing = Event()
        self._faults: dict[int, How] = {}
        self._lock = Lock()

    def fail(self, at: int, how: How, times: int = 1) -> None:
        """Let the nth request from now fail, where 1 is the next, and those after it."""
        with self._lock:
            self._faults |= {len(self.requests) + at + n: how for n in range(times)}

    def take(self, request: str) -> How | None:
        """Note a request, and say how it fails."""
        with self._lock:
            self.requests.append(request)
            how = self._faults.pop(len(self.requests), None)
            if how is not None:
                self.failed.append(request)
            return how

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that have gone."""


class _Handler(BaseHTTPRequestHandler):
    server: Flaky
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        how: str = self.server.take(f"{self.command} {self.path}") or ""
        if how in ("hang", "reset"):
            return self._break(how)
        if how in ("500", "503"):
            return self._refuse(how)
        status, headers, answer = self._pass_on(body)
        if how.endswith("_after"):
            how = how.removesuffix("_after")
            return self._refuse(how) if how.isdigit() else self._break(how)
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _NOT_PASSED_ON:
                self.send_header(name, value)
        if how == "truncated" and not answer:
            return self._break("reset")
        self.end_headers()
        if how == "truncated":
            self.wfile.write(answer[: len(answer) // 2])
            self.close_connection = True
        elif how == "slow":
            step = len(answer) // _PIECES + 1
            for start in range(0, len(answer), step):
                self.wfile.write(answer[start : start + step])
                self.wfile.flush()
                self.server.closing.wait(_PAUSE)
        else:
            self.wfile.write(answer)
        return None

    do_DELETE = do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.behind, timeout=300)
        try:
            passed = {n: v for n, v in self.headers.items() if n.lower() not in _NOT_PASSED_ON}
            passed.pop("Expect", None)
            connection.request(self.command, self.path, body, passed)
            answer = connection.getresponse()
            data = answer.read()
            headers = answer.getheaders()
            if answer.getheader("Content-Length") is None:
                headers.append(("Content-Length", str(len(data))))
            return answer.status, headers, data
        finally:
            connection.close()

    def _refuse(self, status: str) -> None:
        self.send_response_only(int(status))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _break(self, how: str) -> None:
        if how == "hang":
            self.server.closing.wait()
        # A reset, not an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def flaky(server: str) -> Iterator[Flaky]:
    """Run such a server in front of another."""
    with Flaky(server) as proxy:
        thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.closing.set()
            proxy.shutdown()
            thread.join()
