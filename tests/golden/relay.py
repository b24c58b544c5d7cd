"""A relay before an S3 server: all objects are of one time, and writing requests are counted.

It works for any client, as it knows only HTTP. The time of an object would get into the plan of a
build from a URL. A case that kills counts the requests, and ends the process at one of them: before
the server gets it, or after, so that the answer never comes.
"""

from __future__ import annotations

import http.client
import re
import threading
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.servers import KEY

BUCKET = "golden"
_OF_A_CONNECTION = {"connection", "transfer-encoding", "expect", "date", "server"}
_TIMES = re.compile(rb"(?<=<LastModified>)[^<]+")
# Moto looks at who it is, and not at the signature.
_OWNER = f"AWS4-HMAC-SHA256 Credential={KEY}/20231114/us-east-1/s3/aws4_request, Signature=0"
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"

# Gets the number of a request, and "before" or "after" it; says whether it has killed the client.
Watch = Callable[[int, str], bool]


class Relay(ThreadingHTTPServer):
    """Passes requests on to a server; ``watch`` sees those that write."""

    daemon_threads = True

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.url = server, f"http://127.0.0.1:{self.server_port}"
        self.watch: Watch = lambda number, when: False
        self.writes = self.active = 0
        self.lock = threading.Condition()

    def restart(self, watch: Watch | None = None) -> None:
        """Count from the start."""
        with self.lock:  # what a killed client has asked for is still done
            assert self.lock.wait_for(lambda: not self.active, timeout=60)
            self.writes, self.watch = 0, watch or (lambda number, when: False)

    def counted(self) -> int:
        """Count one writing request more; give its number."""
        with self.lock:
            self.writes += 1
            return self.writes

    def handle_error(self, *_: object) -> None:
        """A client that was killed has closed its connection."""

    # What the cases do with the bucket themselves.

    def contents(self) -> dict[str, bytes]:
        """Give all objects by their keys."""
        listed = ET.fromstring(self._request("GET", "?list-type=2"))
        keys = [entry.findtext(f"{_XML}Key") or "" for entry in listed.iter(f"{_XML}Contents")]
        return {key: self._request("GET", f"/{urllib.parse.quote(key)}") for key in keys}

    def replace(self, objects: dict[str, bytes]) -> None:
        """Let the bucket hold exactly these objects."""
        self._request("PUT", "")
        for key in self.contents():
            self._request("DELETE", f"/{urllib.parse.quote(key)}")
        for key, data in objects.items():
            self.upload(key, data)

    def upload(self, key: str, data: bytes) -> None:
        self._request("PUT", f"/{urllib.parse.quote(key)}", data)

    def _request(self, method: str, path: str, data: bytes | None = None) -> bytes:
        url = f"{self.behind}/{BUCKET}{path}"
        headers = {"Authorization": _OWNER, "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request) as answer:
            found: bytes = answer.read()
            return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is sent in one piece: its second one would wait for the client, 40 ms each time.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: Relay

    def _pass_on(self) -> None:
        with self.server.lock:
            self.server.active += 1
        try:
            self._answer()
        finally:
            with self.server.lock:
                self.server.active -= 1
                self.server.lock.notify_all()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        number = 0 if self.command in ("GET", "HEAD") else self.server.counted()
        if number and self.server.watch(number, "before"):
            self.close_connection = True
            return
        to = http.client.HTTPConnection(urllib.parse.urlsplit(self.server.behind).netloc)
        headers = {n: v for n, v in self.headers.items() if n.lower() not in _OF_A_CONNECTION}
        to.request(self.command, self.path, body, headers)
        answer = to.getresponse()
        data = _TIMES.sub(b"2023-11-14T22:13:20.000Z", answer.read())
        to.close()
        if number and self.server.watch(number, "after"):
            self.close_connection = True
            return
        self.send_response(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() == "last-modified":
                value = "Tue, 14 Nov 2023 22:13:20 GMT"
            if name.lower() == "content-length" and self.command != "HEAD":
                value = str(len(data))
            if name.lower() not in _OF_A_CONNECTION:
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def relayed(server: str) -> Iterator[Relay]:
    """Run a relay before a server."""
    relay = Relay(server)
    thread = threading.Thread(target=relay.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.shutdown()
        relay.server_close()
        thread.join()
