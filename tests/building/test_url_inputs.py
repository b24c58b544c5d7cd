"""Images, tars and captions at an object store: built as from a local copy, with few requests."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from PIL import Image

import shardwright
from shardwright import InputMissingError, StorageError, UsageError
from shardwright.building.inputs import Left, Row, find, listing
from shardwright.building.measuring import Measured, measured
from shardwright.building.tars import TarSample, samples
from shardwright.deriving import images as pictures
from shardwright.engine.local import Local
from shardwright.progress import Progress
from shardwright.recipes import SPECIFICATION
from shardwright.storage import extents, objects
from shardwright.storage.extents import HEAD, FarError, Part
from shardwright.storage.paths import exists
from shardwright.storage.urls import Url
from shardwright.store.facts import image_file
from tests.building.builds import build, interrupt, ledger, members, reasons, records, write_recipe
from tests.building.tarsets import encoded, members_of, picture, write_set, write_tar
from tests.derive.pictures import gradient, make_images, save
from tests.servers import use_s3


class Proxy:
    """Passes requests on to a server, and remembers them; some may fail."""

    def __init__(self, server: str) -> None:
        self.seen: list[str] = []  # the method, and the path or the kind of request
        self.sent = 0  # bytes
        self.failing: Callable[[str], int | None] = lambda _: None
        address = urlsplit(server).netloc
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                what = "LIST" if "list-type" in query else self.command
                request = f"{what} {unquote(path)}"
                proxy.seen.append(request)
                if status := proxy.failing(request):
                    self.answer(status, {}, b"")
                    return
                server = http.client.HTTPConnection(address)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.request(self.command, self.path, body, dict(self.headers))
                answer = server.getresponse()
                data = answer.read()
                proxy.sent += len(data)
                self.answer(answer.status, dict(answer.getheaders()), data)
                server.close()

            do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815 - as http.server wants

            def answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
                self.send_response(status)
                length = headers.get("Content-Length", "0") if self.command == "HEAD" else len(data)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    def counts(self) -> Counter[str]:
        """Count the requests since the last call, by method and suffix."""
        found = Counter(f"{r.split()[0]} {Path(r).suffix}".strip() for r in self.seen)
        self.seen.clear()
        return found

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def proxy(moto: str, bucket: Url, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What stands between this machine and the bucket."""
    found = Proxy(moto)
    use_s3(monkeypatch, found.url)
    yield found
    found.close()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests be repeated at once."""
    monkeypatch.setattr(objects, "_FIRST_PAUSE", 0.001)


def upload(folder: Path, url: Url) -> Url:
    """Copy a folder, or a file, to a URL."""
    for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
        if path.is_file():
            (url / str(path.relative_to(folder.parent))).write(path.read_bytes())
    return url / folder.name


def contents(output: Path, root: object) -> dict[str, list[tuple[str, bytes]]]:
    """Read all members of all shards; image paths are relative to where the images are."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for shard, each in members(output).items():
        for name, data in each:
            if name.endswith(".json"):
                record = json.loads(data)
                path = record["image_path"]
                assert path.startswith(f"{root}/")
                data = data.replace(path.encode(), path[len(str(root)) :].encode())
            found.setdefault(shard, []).append((name, data))
    return found


def look(*given: Url, ids: str = "name") -> list[Measured]:
    """Measure in this process."""
    recipe = SPECIFICATION.override(fit=None, models={}, ids=ids)
    return list(measured(find(given, Progress()), recipe, Local(1), Progress()))


def test_a_build_from_a_url_equals_one_from_a_local_copy_and_asks_for_each_file_once(
    bucket: Url, proxy: Proxy, recipe: Path, tmp_path: Path
) -> None:
    folder = make_images(tmp_path / "images", 20)
    save(folder / "sub folder/ü+%41 #?.jpg", gradient(96, 64, 50), quality=95)
    (folder / "sub folder/ü+%41 #?.txt").write_text("a name of many kinds")
    save(folder / "sub folder/.hidden.jpg", gradient(96, 64))
    save(folder / ".hidden/img.jpg", gradient(96, 64))
    save(folder / "large.png", np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8))
    (folder / "large.txt").write_text("more than a head")
    assert (folder / "large.png").stat().st_size > HEAD
    save(folder / "without.png", gradient(64, 64))
    (folder / "broken.jpg").write_bytes(b"nothing")
    (folder / "empty.jpg").touch()
    write_set(folder / "tars/0.tar", ["a", "b"])
    write_set(folder / "tars/1.tar", ["c", "d"])
    url = upload(folder, bucket)
    for key in ("images/", "images/folder.jpg/", "images/tars/"):  # as consoles make folders
        bucket.objects.put(key, b"")
    proxy.counts()
    near = build(folder, tmp_path / "near", recipe=recipe, shard_size=6)
    far = build(str(url), tmp_path / "far", recipe=recipe, shard_size=6)
    counts = proxy.counts()
    assert (far.inputs, far.written_samples, far.left_out.keys()) == (
        (near.inputs, near.written_samples, near.left_out.keys())
    )
    assert far.written_samples == 20 + 1 + 1 + 4
    assert contents(tmp_path / "far", url) == contents(tmp_path / "near", folder)
    names = {"broken.jpg": "broken_image", "empty.jpg": "broken_image", "without.png": "no_caption"}
    assert reasons(tmp_path / "far") == reasons(tmp_path / "near") == names
    # An image once for its head and once to be built; a text once; a tar once, and each member.
    assert counts == {
        "LIST": 1,
        "GET .png": 2 * 21 + 1 + 1,  # of a large one the end is read too
        "GET .jpg": 2 + 2,
        "GET .txt": 22,
        "GET .tar": 2 + 4,
    }
    record = records(tmp_path / "far")["a"]
    assert record["image_path"] == f"{url}/tars/0.tar/a.jpg"


def test_an_interrupted_build_from_a_url_goes_on_from_any_folder_to_the_same_bytes(
    bucket: Url, proxy: Proxy, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = upload(make_images(tmp_path / "images", 24, ((96, 64),)), bucket)
    build(str(url), tmp_path / "unbroken", recipe=recipe, shard_size=4)
    interrupt(str(url), tmp_path / "out", 2, recipe=recipe, shard_size=4)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    proxy.counts()
    summary = build(str(url), tmp_path / "out", recipe=recipe, shard_size=4)
    counts = proxy.counts()
    assert (summary.kept_shards, summary.written_samples) == (2, 24)
    assert contents(tmp_path / "out", url) == contents(tmp_path / "unbroken", url)
    assert counts == {"LIST": 1, "GET .png": 24 - 8}
    again = build(str(url), tmp_path / "out", recipe=recipe, shard_size=4)
    assert (again.written_samples, again.already_there) == (0, 24)
    assert proxy.counts() == {"LIST": 1}


def test_images_that_change_or_vanish_after_planning_are_left_out_with_the_reason(
    bucket: Url, recipe: Path, tmp_path: Path
) -> None:
    folder = make_images(tmp_path / "images", 12, ((96, 64),))
    write_set(folder / "x.tar", ["a", "b"])
    write_set(folder / "y.tar", ["c"])
    url = upload(folder, bucket)
    interrupt(str(url), tmp_path / "out", 1, recipe=recipe, shard_size=3)
    last = (folder / "img010.png").read_bytes()
    (url / "img008.png").write(picture(96, 64, 99))
    (url / "img009.png").write((folder / "img009.png").read_bytes() + b"\0")  # only its size
    (url / "img010.png").remove()
    (url / "img011.png").write((folder / "img011.png").read_bytes())  # only its time
    write_tar(folder / "x.tar", [*members_of("a", 0, (24, 16)), *members_of("b", 9, (25, 16))])
    (url / "x.tar").write((folder / "x.tar").read_bytes())
    (url / "y.tar").remove()
    summary = build(str(url), tmp_path / "out", recipe=recipe, shard_size=3)
    assert summary.written_samples == 10
    assert reasons(tmp_path / "out") == {
        "img008.png": "changed", "img009.png": "changed", "img010.png": "gone",
        "b.jpg": "changed", "c.jpg": "gone",
    }  # fmt: skip
    details = {Path(line["image_path"]).name: line["detail"] for line in ledger(tmp_path / "out")}
    assert details["img008.png"] == "its file has changed since it was planned"
    assert details["b.jpg"] == "its tar has changed since it was planned"
    assert details["img010.png"] == "it is no longer at the store"
    assert "img010" not in records(tmp_path / "out")
    (url / "img010.png").write(last)
    added = build(str(url), tmp_path / "out", recipe=recipe, shard_size=3, append=True)
    assert added.written_samples == 4  # all but c.jpg, whose tar is gone
    assert records(tmp_path / "out").keys() >= {"img008", "img009", "img010", "b"}


@pytest.mark.usefixtures("impatient")
def test_an_image_that_a_store_does_not_give_is_built_by_the_next_run(
    bucket: Url, proxy: Proxy, recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = upload(make_images(tmp_path / "images", 6, ((96, 64),)), bucket)
    build(str(url), tmp_path / "unbroken", recipe=recipe, shard_size=2)

    def fails(request: str) -> int | None:
        built = proxy.seen.count(request) > 1  # the first time is for its head
        return 503 if built and request.endswith("img003.png") else None

    proxy.seen.clear()
    proxy.failing = fails
    with caplog.at_level(logging.WARNING, "shardwright"):
        interrupt(str(url), tmp_path / "out", 2, recipe=recipe, shard_size=2)
    (commit,) = (tmp_path / "out/.shardwright/build/commits").glob("000001-*.json")
    (left,) = json.loads(commit.read_bytes())["left"]
    assert left["reason"] == "unreadable"
    assert left["detail"].endswith(f"({objects.TRIES} tries)")
    assert "img003.png: 503" in caplog.text
    proxy.failing = lambda _: None
    summary = build(str(url), tmp_path / "out", recipe=recipe, shard_size=2)
    assert (summary.written_samples, summary.left_out) == (6, {})
    assert contents(tmp_path / "out", url) == contents(tmp_path / "unbroken", url)


def test_a_store_that_is_busy_for_a_moment_changes_nothing(
    bucket: Url, proxy: Proxy, recipe: Path, tmp_path: Path
) -> None:
    url = upload(make_images(tmp_path / "images", 6), bucket)
    build(str(url), tmp_path / "unbroken", recipe=recipe)
    proxy.seen.clear()
    proxy.failing = lambda request: 500 if proxy.seen.count(request) == 1 else None
    summary = build(str(url), tmp_path / "out", recipe=recipe)
    assert (summary.written_samples, summary.left_out) == (6, {})
    assert contents(tmp_path / "out", url) == contents(tmp_path / "unbroken", url)


def test_a_tar_of_small_members_is_read_in_few_pieces_and_of_large_ones_only_the_heads(
    bucket: Url, proxy: Proxy, tmp_path: Path
) -> None:
    noise = [os.urandom(60_000) for _ in range(150)]
    members = [(f"{n:03}.{kind}", data) for n, data in enumerate(noise) for kind in ("jpg", "txt")]
    small = write_tar(tmp_path / "small.tar", members)
    large = write_tar(tmp_path / "large.tar", [(f"{n}.png", bytes(6 << 20)) for n in range(5)])
    for path, requests, share in ((small, 8, 1.1), (large, 7, 0.1)):
        (bucket / path.name).write(path.read_bytes())
        proxy.counts()
        proxy.sent, size = 0, path.stat().st_size
        found = list(samples(str(bucket / path.name), size))
        assert proxy.counts()["GET .tar"] <= requests
        assert proxy.sent < share * size
        for near, far in zip(samples(str(path)), found, strict=True):
            assert isinstance(near, TarSample)
            assert isinstance(far, TarSample)
            for ours, theirs in ((near.image, far.image), (near.text, far.text)):
                assert ours is None or theirs is None or ours[1:4] == theirs[1:4]
        assert proxy.counts() == {}
        first = found[0]
        assert isinstance(first, TarSample)
        with tarfile.open(path) as tar:
            member = tar.extractfile(tar.getmembers()[0])
            assert member is not None
            assert extents.read(first.image) == member.read()


def test_pictures_whose_size_is_far_from_their_begin_are_measured(
    bucket: Url, proxy: Proxy
) -> None:
    image = Image.fromarray(gradient(300, 200))
    profiled = encoded(image, "JPEG", icc_profile=os.urandom(150_000), quality=95)
    later = encoded(image, "TIFF", compression="tiff_lzw")  # which has its directory at the end
    assert int.from_bytes(later[4:8], "little") > HEAD
    for name, data in (("p.jpg", profiled), ("t.tif", later), ("k.png", encoded(image, "PNG"))):
        (bucket / "x" / name).write(data)
    proxy.counts()
    rows = [each.row for each in look(bucket / "x")]
    counts = proxy.counts()
    assert all(isinstance(row, Row) and (row.width, row.height) == (300, 200) for row in rows)
    assert counts["GET .png"] == 1
    assert 2 <= counts["GET .jpg"] <= 3
    assert 2 <= counts["GET .tif"] <= 3


@pytest.mark.parametrize("ids", ["name", "path"])
def test_rows_of_a_url_are_those_of_a_local_copy(bucket: Url, tmp_path: Path, ids: str) -> None:
    folder = make_images(tmp_path / "images", 3)
    (folder / "img001.txt").write_bytes(b"\xff")
    save(folder / "img.1/b%2F.png", gradient(30, 40))
    write_set(folder / "x/0.tar", ["a", "b/c"])
    write_tar(folder / "x/1.tar", [("k.png", picture()), ("k.json", b"[]"), ("l.txt", b"x")])
    (folder / "x/2.tar").write_bytes((folder / "x/0.tar").read_bytes()[:3000])
    (folder / "x/3.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    url = upload(folder, bucket)
    recipe = SPECIFICATION.override(fit=None, models={}, ids=ids)
    near = list(measured(find([folder], Progress()), recipe, Local(1), Progress()))
    far = look(url, ids=ids)
    assert len(far) == len(near) == 4 + 2 + 2 + 2 + 1
    for ours, theirs in zip(near, far, strict=True):
        assert type(ours.row) is type(theirs.row)
        assert ours.row.image_id == theirs.row.image_id
        assert ours.row.path.removeprefix(str(folder)) == theirs.row.path.removeprefix(str(url))
        assert (ours.columns, ours.text) == (theirs.columns, theirs.text)
        assert (ours.fault is None) == (theirs.fault is None)
        if isinstance(ours.row, Left) and isinstance(theirs.row, Left):
            assert (ours.row.reason, ours.row.detail) == (theirs.row.reason, theirs.row.detail)
        elif isinstance(ours.row, Row) and isinstance(theirs.row, Row):
            for field in ("width", "height", "bytes", "beside", "image", "text", "json"):
                assert getattr(ours.row, field) == getattr(theirs.row, field)
    one = look(url / "x/0.tar", ids=ids)
    assert [each.row.path for each in one] == [f"{url}/x/0.tar/{key}.jpg" for key in ("a", "b/c")]


def test_a_listing_tells_when_tars_at_a_url_change(bucket: Url, tmp_path: Path) -> None:
    folder = make_images(tmp_path / "images", 2)
    write_set(folder / "0.tar", ["a"])
    url = upload(folder, bucket)

    def summed() -> str:
        return listing(find([url], Progress())[0]).digest

    before = summed()
    assert summed() == before
    (url / "img000.png").write(b"other")  # images are looked at when they are needed
    assert summed() == before
    write_set(folder / "0.tar", [f"{n}" for n in range(20)])
    (url / "0.tar").write((folder / "0.tar").read_bytes())
    assert summed() != before


def test_a_part_at_a_url_is_read_once_and_only_as_it_was_planned(bucket: Url, proxy: Proxy) -> None:
    data = os.urandom(50_000)
    (bucket / "x.png").write(data)
    path = f"{bucket}/x.png"
    proxy.counts()
    part = Part(path, 0, len(data), "", 5, extents.begins(data))
    got = extents.fetched(part)
    assert proxy.counts() == {"GET .png": 1}
    assert isinstance(got, Part)
    assert extents.read(got) == got.data == data
    assert extents.begin(got, 12) == data[:12]
    found = image_file(got)
    assert (found.path, found.bytes, found.mtime_ns) == (path, len(data), 5)
    with extents.opened(got, head=True) as file, suppress(AttributeError):
        assert file.read() == data
    assert proxy.counts() == {}
    head = extents.fetched(part, HEAD)
    assert isinstance(head, Part)
    assert head.data == data[:HEAD]
    with extents.opened(head, head=True) as file:
        assert not isinstance(file, str)
        file.seek(-10, os.SEEK_END)
        assert file.read() == data[-10:]
    for wrong in (part._replace(size=49_999), part._replace(size=50_001), part._replace(xxh3="0")):
        with pytest.raises(FarError, match="has changed since"):
            extents.fetched(wrong)
    with pytest.raises(FarError, match="no longer at the store"):
        extents.fetched(part._replace(path=f"{bucket}/y.png"))
    with pytest.raises(FarError, match="NoSuchBucket"):
        extents.fetched(part._replace(path="s3://no-such-bucket-here/y.png"))
    assert exists(path)
    assert not exists(f"{bucket}/y.png")
    with pytest.raises(pictures.BadImageError) as caught:
        pictures.fetched(part._replace(xxh3="0"))
    assert caught.value.args == ("changed", "its file has changed since it was planned")


def test_captions_at_a_url_name_images_at_urls(bucket: Url, recipe: Path, tmp_path: Path) -> None:
    folder = make_images(tmp_path / "images", 3)
    for path in folder.glob("*.txt"):
        path.unlink()
    url = upload(folder, bucket)
    rows = [
        {"image_path": f"{url}/img000.png", "caption": "by its url"},
        {"image_path": "img001.png", "caption": "by its name"},
        {"image_path": "images/img002.png", "caption": "by a part of its path"},
    ]
    (bucket / "c.jsonl").write("\n".join(map(json.dumps, rows)).encode())
    lines = [f"{row['image_path']},{row['caption']}" for row in rows]
    (bucket / "c.csv").write("\n".join(["image_path,caption", *lines]).encode())
    for name in ("c.jsonl", "c.csv"):
        output = tmp_path / name
        build(str(url), output, recipe=recipe, captions=str(bucket / name))
        found = {image_id: each["caption"] for image_id, each in records(output).items()}
        texts = [row["caption"] for row in rows]
        assert [found[f"img{n:03}"] for n in range(3)] == texts
    for name, what in (("none.csv", "no such file"), ("images", "is a folder")):
        with pytest.raises((InputMissingError, UsageError), match=what):
            build(str(url), tmp_path / "out", recipe=recipe, captions=str(bucket / name))


def test_append_adds_only_what_is_new_at_a_url(
    bucket: Url, proxy: Proxy, recipe: Path, tmp_path: Path
) -> None:
    url = upload(make_images(tmp_path / "images", 4, ((96, 64),)), bucket)
    build(str(url), tmp_path / "out", recipe=recipe)
    (url / "new.png").write(picture(96, 64, 7))
    (url / "new.txt").write(b"a new one")
    proxy.counts()
    added = build(str(url), tmp_path / "out", recipe=recipe, append=True)
    assert (added.written_samples, added.already_there) == (1, 4)
    assert proxy.counts() == {"LIST": 1, "GET .png": 2, "GET .txt": 1}
    other = upload(make_images(tmp_path / "other", 2, ((96, 72),)), bucket)
    same = build(str(other), tmp_path / "out", recipe=recipe, append=True)
    assert (same.written_samples, same.left_out["duplicate_id"].count) == (0, 2)
    for n in range(2):
        (url / f"img{n:03}.png").remove()
        path = tmp_path / f"images/img{n:03}.png"
        (other / path.name).write(path.read_bytes())
    moved = build(str(other), tmp_path / "out", recipe=recipe, append=True)
    assert (moved.written_samples, moved.already_there, moved.left_out) == (0, 2, {})


def test_what_cannot_be_an_input_is_refused_with_what_to_do(
    bucket: Url, recipe: Path, tmp_path: Path
) -> None:
    url = upload(make_images(tmp_path / "images", 1), bucket)
    (bucket / "texts/a.txt").write(b"no image")
    give = "give folders of images, or tars of images"

    def refused(*given: object) -> str:
        with pytest.raises((UsageError, InputMissingError, StorageError)) as caught:
            shardwright.build(
                [str(each) for each in given],
                output_dir=tmp_path / "out",
                recipe=recipe,
                encoders="sketch",
            )
        assert not (tmp_path / "out").exists()
        return str(caught.value)

    for name in ("nothing", "nothing.tar"):
        assert refused(bucket / name) == f"{bucket / name}: no such file or folder; {give}"
    assert refused(bucket / "texts") == f"{bucket}/texts: no images and no tars; {give}"
    file = url / "img000.png"
    assert refused(file) == f"{file}: is neither a folder nor a .tar file; {give}"
    assert re.fullmatch(
        r"s3://no-such-bucket-here/x: NoSuchBucket: .*; make the bucket first, or check its name",
        refused("s3://no-such-bucket-here/x"),
    )
    assert refused(url, f"{url}/") == f"{url}: is given twice; give it once"
    inside = f"{url}/sub: is inside {url}, which is given too; give only one of them"
    assert refused(url, url / "sub") == inside
    assert refused("ftp://x/y").startswith(
        "ftp://x/y: is not a URL that can be used here; give s3:"
    )
    with pytest.raises(UsageError) as caught:
        shardwright.derive(str(url), derived_dir=tmp_path / "store", encoders="sketch")
    fix = "give a folder or file of this machine"
    assert str(caught.value) == f"{url}: is a URL; {fix}"
