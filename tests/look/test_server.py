"""The server answers only the page, only about its data, and does not mind bad clients."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
import pytest

from shardwright.errors import UsageError
from shardwright.looking import server as servers
from shardwright.looking.server import open_server
from shardwright.looking.viewer import Viewer
from tests.look.pictures import Folders, Served, previews


def ask(
    served: Served, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Send a request as it is, not as a browser would clean it up."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(http.client.HTTPConnection("127.0.0.1", served.server.server_port)) as connection:
        connection.putrequest(method, path, skip_host="Host" in named)
        for name, value in named.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def test_it_listens_on_loopback_only(shards: Served) -> None:
    assert shards.server.server_address[0] == "127.0.0.1"
    assert urlsplit(shards.url).hostname == "127.0.0.1"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0", "", "["]
)
def test_a_name_that_leads_here_is_refused(shards: Served, host: str) -> None:
    status, _, body = ask(shards, "/api/overview", Host=host)
    assert status == 403
    assert json.loads(body) == {"error": f"open {shards.url} instead"}


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1"])
def test_loopback_by_any_port_is_accepted_as_through_ssh(shards: Served, host: str) -> None:
    assert ask(shards, "/api/overview", Host=host)[0] == 200


def test_pages_of_other_sites_cannot_ask_but_may_link_here(shards: Served) -> None:
    for site in ("cross-site", "same-site"):
        assert ask(shards, "/api/overview", Sec_Fetch_Site=site)[0] == 403
        assert ask(shards, "/thumb/0", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")[0] == 403
        for page in ("/", "/?view=grid&flag=truncated"):
            opened = ask(shards, page, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate")
            assert opened[0] == 200
    assert ask(shards, "/api/overview", Sec_Fetch_Site="same-origin")[0] == 200


def test_every_answer_forbids_scripts_and_contents_of_others(shards: Served) -> None:
    for path in ("/", "/api/overview", "/thumb/0", "/nothing", "/api/samples?page=x"):
        _, headers, _ = ask(shards, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-cache"
        assert headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/page/index.html",
        "/%2e%2e/server.py",
        "/..%2f..%2fpyproject.toml",
        "//etc/passwd",
        "/etc/passwd",
        "/index.html/..",
        "/thumb/../../etc/passwd",
        "/thumb/-1",
        "/thumb/1e3",
        "/thumb/99999999999999999999",
        "/thumb/٣",
        "/thumb/",
        "/image/0/1",
        "/api/sample/x",
        "/api/sample/0/1",
        "/api/",
        "/api",
        "/api/Viewer",
        "/api/__class__",
    ],
)
def test_no_path_leads_to_another_file(shards: Served, path: str) -> None:
    status, headers, body = ask(shards, quote(path, safe="/%.?=&"))
    assert status == 404
    assert headers["Content-Type"] == "application/json"
    assert list(json.loads(body)) == ["error"]


@pytest.mark.parametrize(
    "path",
    ["/latent/0/..%2f..%2fetc%2fpasswd", "/heat/0/..%2fdinov3.npy", "/heat/0/%00", "/latent/0/t5"],
)
def test_a_picture_that_a_sample_does_not_have_is_no_content(shards: Served, path: str) -> None:
    status, _, body = ask(shards, path)
    assert (status, body) == (204, b"")


def test_an_answer_is_sent_again_only_if_it_has_changed(shards: Served) -> None:
    _, headers, body = ask(shards, "/thumb/0")
    again, _, nothing = ask(shards, "/thumb/0", If_None_Match=headers["ETag"])
    assert (again, nothing) == (304, b"")
    other, _, picture = ask(shards, "/thumb/1", If_None_Match=headers["ETag"])
    assert other == 200
    assert picture not in (b"", body)


@pytest.mark.parametrize(
    "query", ["page=-1", "page=x", "page=99999999999", "size=0", "size=1.5", "size=%00"]
)
def test_bad_numbers_are_one_sentence(shards: Served, query: str) -> None:
    status, _, body = ask(shards, f"/api/samples?{query}")
    assert status == 400
    assert "give a whole number from" in json.loads(body)["error"]


def test_an_answer_is_of_a_bounded_size(shards: Served) -> None:
    assert len(shards.get("api/samples?size=100000")["samples"]) <= 240
    assert ask(shards, "/api/samples?text=" + "x" * 9000)[0] == 414
    many = "&".join(f"a{n}=1" for n in range(500))
    assert ask(shards, f"/api/samples?{many}")[0] == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(shards: Served, method: str) -> None:
    assert ask(shards, "/api/samples", method)[0] == 501


def test_a_head_request_has_no_body(shards: Served) -> None:
    status, headers, body = ask(shards, "/api/overview", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100


def test_clients_that_send_nothing_half_a_request_or_leave_do_not_hold_up_others(
    shards: Served,
) -> None:
    address = ("127.0.0.1", shards.server.server_port)
    idle = [socket.create_connection(address) for _ in range(20)]
    for number, client in enumerate(idle):
        if number % 2:
            client.sendall(b"GET /image/0 HTTP/1.1\r\nHost: loc")
    for _ in range(20):
        with socket.create_connection(address) as client:
            client.sendall(b"GET /image/0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert shards.get("api/overview")["samples"] == 23
    for client in idle:
        client.close()


@pytest.mark.parametrize("wild", [b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\xff\n"])
def test_what_is_not_http_gets_an_answer_or_none_and_the_server_goes_on(
    shards: Served, wild: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", shards.server.server_port)) as client:
        client.sendall(wild)
        client.settimeout(5)
        client.shutdown(socket.SHUT_WR)
        while client.recv(4096):
            pass
    assert shards.get("api/overview")["samples"] == 23


@pytest.fixture
def hostile(at: Folders, tmp_path: Path) -> Iterator[tuple[Path, Served]]:
    """A store whose records name other files as their images."""
    store = tmp_path / "store"
    shutil.copytree(at.store, store)
    (store / ".shardwright/facts.jsonl").unlink()
    secret, pipe = tmp_path / "secret.txt", tmp_path / "pipe"
    secret.write_text("the secret")
    os.mkfifo(pipe)
    jsonl = store / "approved_image_dataset.jsonl"
    records = [msgspec.json.decode(line) for line in jsonl.read_bytes().splitlines()]
    paths = [
        str(secret),
        str(pipe),
        "/dev/zero",
        "/etc/passwd",
        "a\0b",
        "x" * 9000,
    ]
    for record, path in zip(records, paths, strict=False):
        record["image_path"] = path
        record["crop"] = [0, 0, 10**400, 64]
    jsonl.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    with Served(Viewer(previews(store))) as served:
        yield secret, served


def test_files_that_a_record_names_are_served_only_as_pictures(
    hostile: tuple[Path, Served],
) -> None:
    _, served = hostile
    for number in range(6):
        status, _, body = ask(served, f"/image/{number}")
        assert status == 204, body
        status, headers, body = ask(served, f"/thumb/{number}")
        assert (status, headers["Content-Type"]) == (200, "image/jpeg"), "of the latent"
        assert b"the secret" not in body
        assert served.get(f"api/sample/{number}")["image"] is None


def test_a_port_that_is_taken_is_named_and_the_usual_one_is_left_for_a_free_one(
    shards: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = shards.server.server_port
    with pytest.raises(UsageError, match=f"--port {taken}: Address already in use; give another"):
        open_server(shards.viewer, taken)
    monkeypatch.setattr(servers, "PORT", taken)
    with open_server(shards.viewer, None) as other:
        assert other.server_port != taken
