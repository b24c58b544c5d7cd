"""The page in a browser: a server on loopback that only answers questions about one viewer.

No request names a file. The files of the page are read at the start, samples are asked for by
number, and pictures are always encoded again here, so that nothing else on the disk can be served.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import xxhash

from shardwright.errors import ShardwrightError, UsageError
from shardwright.looking.pictures import Previews
from shardwright.looking.viewer import Parameters, Viewer

HOST = "127.0.0.1"
PORT = 8417  # if it is free; a fixed one, so that addresses stay valid
_NAMES = ("127.0.0.1", "localhost")  # that a browser may know us by
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # ask again: the next run at this address may show other data
}
_JSON = "application/json"
_MOST_FIELDS = 40  # of an address
_LONGEST = 8192  # bytes of an address
_TIMEOUT = 30  # seconds that a client may take

_log = logging.getLogger(__name__)


class Refused(Exception):  # noqa: N818 - it is an answer
    """A request that is not answered: the status and a sentence."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Server(ThreadingHTTPServer):
    """Serves a viewer; a thread for each connection, so that a slow client holds up nobody."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, viewer: Viewer, port: int) -> None:
        self.viewer = viewer
        folder = resources.files("shardwright.looking") / "page"
        self.files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            fix = "give another --port, or none to take a free one"
            raise UsageError(f"--port {port}: {error.strerror}", fix=fix) from None
        except OverflowError:
            raise UsageError(f"--port {port}: not a port", fix="give 1 to 65535") from None

    @property
    def url(self) -> str:
        """Give the address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that has gone."""
        _log.debug("a connection ended early", exc_info=True)


def open_server(viewer: Viewer, port: int | None) -> Server:
    """Listen on the port, or on the usual one, or on any that is free."""
    if port is not None:
        return Server(viewer, port)
    try:
        return Server(viewer, PORT)
    except UsageError:
        return Server(viewer, 0)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "shardwright"
    sys_version = ""
    timeout = _TIMEOUT

    def do_GET(self) -> None:
        """Answer a request."""
        status = HTTPStatus.OK
        try:
            kind, body = self._answer()
        except Refused as refused:
            status, kind, body = refused.status, _JSON, _encoded({"error": str(refused)})
        except ShardwrightError as error:
            status, kind, body = HTTPStatus.BAD_REQUEST, _JSON, _encoded({"error": str(error)})
        except Exception as error:  # a bug of ours must not end in silence
            _log.exception("%s", self.path)
            status, kind = HTTPStatus.INTERNAL_SERVER_ERROR, _JSON
            body = _encoded({"error": f"{type(error).__name__}: {error}"})
        mark = f'"{xxhash.xxh3_64_hexdigest(body)}"'
        if status is HTTPStatus.OK and not body:  # not every sample has every picture
            status = HTTPStatus.NO_CONTENT
        elif status is HTTPStatus.OK and self.headers.get("If-None-Match") == mark:
            status, body = HTTPStatus.NOT_MODIFIED, b""
        self._send(status, kind, body, mark)

    do_HEAD = do_GET  # noqa: N815 - named by its base

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is not a request of ours."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._send(status, _JSON, _encoded({"error": message or status.phrase}))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base has it
        """Print nothing: the terminal is the user's."""

    def _send(self, status: HTTPStatus, kind: str, body: bytes, mark: str | None = None) -> None:
        self.send_response(status)
        if mark is not None:
            self.send_header("ETag", mark)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer(self) -> tuple[str, bytes]:
        self._require_ours()
        try:
            address = urlsplit(self.path)
            given = dict(parse_qsl(address.query, max_num_fields=_MOST_FIELDS))
            empty, *words = [unquote(word) for word in address.path.split("/")]
        except ValueError:
            empty, words = "?", []
        if empty or not words:
            raise Refused(HTTPStatus.BAD_REQUEST, "this is not an address of the page")
        if (file := self.server.files.get(words[-1] or "index.html")) and len(words) == 1:
            return _TYPES[(words[0] or "index.html").rpartition(".")[2]], file
        if words[0] == "api" and len(words) in (2, 3):
            return _JSON, _encoded(self._api(words[1:], given))
        return self._picture(words, given)

    def _require_ours(self) -> None:
        """Refuse what another site's page asks for, also through a name that leads here."""
        name = self.headers.get("Host", "").rpartition(":")
        if (name[0] or name[2]) not in _NAMES:
            raise Refused(HTTPStatus.FORBIDDEN, f"open {self.server.url} instead")
        site = self.headers.get("Sec-Fetch-Site", "none")
        opened = self.headers.get("Sec-Fetch-Mode") == "navigate"
        page = opened and urlsplit(self.path).path == "/"  # a link to it may be anywhere
        if site not in ("none", "same-origin") and not page:
            raise Refused(HTTPStatus.FORBIDDEN, "only the page itself may ask")
        if len(self.path) > _LONGEST:
            raise Refused(HTTPStatus.REQUEST_URI_TOO_LONG, "the address is too long")

    def _api(self, words: list[str], given: Parameters) -> Any:  # noqa: ANN401 - JSON
        viewer = self.server.viewer
        if words[0] == "sample" and len(words) == 2:
            return viewer.sample(self._number(words[1]), given)
        questions: dict[str, Callable[[Parameters], Any]] = {
            "overview": viewer.overview,
            "latents": viewer.latents,
            "samples": viewer.samples,
            "similar": viewer.similar,
            "groups": viewer.groups,
            "map": viewer.map,
            "colours": viewer.colours,
        }
        if words[0] not in questions or len(words) != 1:
            raise Refused(HTTPStatus.NOT_FOUND, "no such question")
        return questions[words[0]](given)

    def _picture(self, words: list[str], given: Parameters) -> tuple[str, bytes]:
        """Make a picture of a sample; no bytes if there is none."""
        if words[0] not in ("thumb", "image", "latent", "heat"):
            raise Refused(HTTPStatus.NOT_FOUND, "this is not an address of the page")
        number = self._number(words[1] if len(words) > 1 else "")
        pictures = self.server.viewer.pictures
        if given.get("side") == "other":
            pictures, number = self._other(number)
        match words:
            case ["thumb", _]:
                latent = given.get("of") == "latent"
                return "image/jpeg", pictures.thumbnail(number, latent=latent) or b""
            case ["image", _]:
                return "image/jpeg", pictures.image(number) or b""
            case ["latent", _, name]:
                return "image/png", pictures.latent(number, name) or b""
            case ["heat", _, name]:
                return "image/png", pictures.heat(number, name) or b""
        raise Refused(HTTPStatus.NOT_FOUND, "there is no such picture")

    def _other(self, number: int) -> tuple[Previews, int]:
        viewer = self.server.viewer
        there = viewer.number_there(number)
        if viewer.others is None or there is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such sample to compare with")
        return viewer.others, there

    def _number(self, text: str) -> int:
        known = len(self.server.viewer.table)
        if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) < known):
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such sample")
        return int(text)


def _encoded(value: Any) -> bytes:  # noqa: ANN401 - anything JSON can hold
    return msgspec.json.encode(value)
