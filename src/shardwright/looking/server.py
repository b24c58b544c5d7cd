"""The page in a browser: a server on loopback that only answers questions about one viewer.

No request names a file. The files of the page are read at the start, samples are asked for by
number, and pictures are always encoded again here, so that nothing else on the disk can be served.
"""

from __future__ import annotations

import errno
import logging
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec.json import encode

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
_QUESTIONS = ("overview", "latents", "samples", "similar", "groups", "map", "colours")
_JSON = "application/json"
_MOST_FIELDS = 40  # of an address
_LONGEST = 8192  # bytes of an address
_TIMEOUT = 30  # seconds that a client may take

_log = logging.getLogger(__name__)


class Refused(Exception):  # noqa: N818 - it is an answer
    """A request that is not answered: ``args`` are the status and a sentence."""


class Server(ThreadingHTTPServer):
    """Serves a viewer; a thread for each connection, so that a slow client holds up nobody."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, viewer: Viewer, port: int) -> None:
        self.viewer = viewer
        folder = resources.files("shardwright.looking") / "page"
        self.files = {  # with their types, by their address
            file.name: (_TYPES[file.name.rpartition(".")[2]], file.read_bytes())
            for file in folder.iterdir()
            if file.is_file()
        }
        self.files[""] = self.files["index.html"]
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
        try:
            kind, body = self._answer()
        except Refused as refused:
            self._fail(*refused.args)
        except ShardwrightError as error:
            self._fail(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:  # a bug of ours must not end in silence
            _log.exception("%s", self.path)
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        else:  # not every sample has every picture
            self._send(HTTPStatus.OK if body else HTTPStatus.NO_CONTENT, kind, body)

    do_HEAD = do_GET  # noqa: N815 - named by its base

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is not a request of ours."""
        self.close_connection = True
        self._fail(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base has it
        """Print nothing: the terminal is the user's."""

    def _fail(self, status: HTTPStatus, why: str) -> None:
        self._send(status, _JSON, encode({"error": why}))

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
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
            words = [unquote(word) for word in address.path.removeprefix("/").split("/")]
        except ValueError:
            why = "this is not an address of the page"
            raise Refused(HTTPStatus.BAD_REQUEST, why) from None
        viewer = self.server.viewer
        match words:
            case [name] if name in self.server.files:
                return self.server.files[name]
            case ["api", "sample", number]:
                return _JSON, encode(viewer.sample(self._number(number), given))
            case ["api", question] if question in _QUESTIONS:
                return _JSON, encode(getattr(viewer, question)(given))
            case ["thumb", number]:
                pictures, place = self._picture(number, given)
                latent = given.get("of") == "latent"
                return "image/jpeg", pictures.thumbnail(place, latent=latent) or b""
            case ["image", number]:
                pictures, place = self._picture(number, given)
                return "image/jpeg", pictures.image(place) or b""
            case ["latent", number, name]:
                pictures, place = self._picture(number, given)
                return "image/png", pictures.latent(place, name) or b""
        raise Refused(HTTPStatus.NOT_FOUND, "this is not an address of the page")

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

    def _picture(self, text: str, given: Parameters) -> tuple[Previews, int]:
        """Choose whose pictures are asked for, and of which sample."""
        viewer, number = self.server.viewer, self._number(text)
        if given.get("side") != "other":
            return viewer.pictures, number
        there = viewer.number_there(number)
        if viewer.others is None or there is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such sample to compare with")
        return viewer.others, there

    def _number(self, text: str) -> int:
        known = len(self.server.viewer.table)
        if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) < known):
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such sample")
        return int(text)
