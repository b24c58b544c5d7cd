"""Shard folders at a URL: ``verify``, ``index`` and ``look`` say what they say of a local copy."""

from __future__ import annotations

import os
import random
import shutil
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

import shardwright
from shardwright import DamageError, InputMissingError, StorageError, UsageError, VerifyReport, pack
from shardwright.shards.format import manifest
from shardwright.shards.format.manifest import PackSettings, Unfinished
from shardwright.shards.loaders.indexes import LOADERS
from shardwright.storage import urls
from shardwright.storage.files import using
from shardwright.storage.local import OnePass
from shardwright.storage.remote import RemoteFile
from shardwright.storage.urls import Url
from tests import commands
from tests.durability.soak import SOAK
from tests.faults import Killed, KillingDisk, contents
from tests.look.pictures import previews
from tests.shards import test_verify as local
from tests.shards.test_verify import FIRST, SECOND
from tests.stores import Store, make_store, record

Damage = Callable[[Path], None]
# The others are tried in soak.
WITHOUT_READING = (
    *(local.missing, local.short, local.foreign),
    *(local.flipped_index, local.no_records, local.flipped_manifest),
)
BY_READING = (local.in_data, local.cut_in_the_middle)
ALL_WITHOUT_READING = [
    damage for damage, _ in local.WITHOUT_READING if damage is not local.a_link_that_leads_nowhere
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of six samples, ``derived``, and its four shards, ``shards``."""
    root = tmp_path_factory.mktemp("packed")
    six = [record(f"img{number}", ("24x16", "32x16")[number % 2]) for number in range(6)]
    make_store(root / "derived", six, latent=local.latent)
    pack(derived_dir=root / "derived", output_dir=root / "shards", shard_size=2, sha256=True)
    return root


@pytest.fixture
def store(packed: Path, tmp_path: Path) -> Store:
    """A copy of the store."""
    shutil.copytree(packed / "derived", tmp_path / "derived")
    lines = (tmp_path / "derived/approved_image_dataset.jsonl").read_bytes().splitlines()
    return Store(tmp_path / "derived", [msgspec.json.decode(line) for line in lines])


@pytest.fixture
def folder(packed: Path, tmp_path: Path) -> Path:
    """A copy of the shards."""
    return shutil.copytree(packed / "shards", tmp_path / "shards")


def upload(folder: Path, bucket: Url) -> Url:
    """Copy a folder to a bucket, file by file."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            (bucket / folder.name / path.relative_to(folder).as_posix()).write(path.read_bytes())
    return bucket / folder.name


def objects(url: Url) -> dict[str, bytes]:
    """Read all files at a URL."""
    return {name: (url / name).read_bytes() for name, _ in url.walk()}


def files(folder: Path) -> dict[str, bytes]:
    """Read all files of a local folder, but for its lock."""
    return {path: data for path, data in contents(folder).items() if data is not None}


def said(report: VerifyReport) -> list[str]:
    """Give the findings as they are printed, with their kinds, wherever the folder is."""
    lines = [f"{one.kind} {one.damage} {one}" for one in report.findings]
    lines = [line.replace(report.path, "FOLDER") for line in lines]
    lines = [line.replace("with --overwrite --", "to another URL with --") for line in lines]
    return [line.replace("with --overwrite", "to another URL") for line in lines]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the requests of this process, by kind."""
    counts: Counter[str] = Counter()
    connect = urls._store

    class Counting:
        def __init__(self, store: Any) -> None:  # noqa: ANN401 - whatever has these methods
            self._store = store

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            counts[name] += 1
            return getattr(self._store, name)

    with monkeypatch.context() as patch:
        patch.setattr(urls, "_store", lambda *given: Counting(connect(*given)))
        yield counts


# verify


@pytest.mark.parametrize("read_data", [False, True])
def test_an_undamaged_folder_at_a_url_has_no_findings(
    read_data: bool, packed: Path, bucket: Url
) -> None:
    url = upload(packed / "shards", bucket)
    here = shardwright.verify(packed / "shards", read_data=read_data, workers=2)
    there = shardwright.verify(str(url), read_data=read_data, workers=2)
    assert there.findings == []
    assert (there.path, there.checked, there.bytes) == (str(url), here.checked, here.bytes)
    assert objects(url) == files(packed / "shards") | {".shardwright/lock": b""}


def test_the_command_names_the_url_and_exits_as_for_a_folder(folder: Path, bucket: Url) -> None:
    url = upload(folder, bucket)
    done = commands.run("verify", f"{url}/", "--read-data")
    assert (done.returncode, f"\n{url}: OK: no damage\n" in f"\n{done.stdout}") == (0, True)
    local.in_data(folder)
    upload(folder, bucket)
    done = commands.run("verify", f"{url}", "--read-data")
    assert done.returncode == 12
    assert f"{FIRST}, sample img2, member t5h.npy: its data is damaged; restore it" in done.stdout


@pytest.mark.parametrize(
    ("damage", "read_data"),
    [
        *((damage, False) for damage in ALL_WITHOUT_READING if SOAK or damage in WITHOUT_READING),
        *((damage, True) for damage, _ in local.BY_READING if SOAK or damage in BY_READING),
    ],
    ids=lambda x: getattr(x, "__name__", "read" if x else ""),
)
def test_damage_at_a_url_is_found_as_in_a_folder(
    damage: Damage, read_data: bool, folder: Path, bucket: Url
) -> None:
    damage(folder)
    here = shardwright.verify(folder, read_data=read_data, workers=1)
    there = shardwright.verify(str(upload(folder, bucket)), read_data=read_data, workers=1)
    assert here.damaged
    assert said(there) == said(here)
    assert (there.checked, there.bytes) == (here.checked, here.bytes)


@pytest.mark.parametrize("read_data", [False, True])
def test_tars_of_another_tool_at_a_url_are_checked_as_loaders_read_them(
    read_data: bool, folder: Path, bucket: Url
) -> None:
    shutil.rmtree(folder / ".shardwright")
    os.truncate(folder / SECOND, 100_000)
    here = shardwright.verify(folder, read_data=read_data, workers=1)
    there = shardwright.verify(str(upload(folder, bucket)), read_data=read_data, workers=1)
    assert {"no_manifest", "not_a_tar"} < here.counts.keys()
    assert said(there) == said(here)


@pytest.mark.parametrize("change", [local.changed_array, local.changed_caption, local.array_gone])
def test_shards_at_a_url_are_compared_with_a_store(
    change: Callable[[Store], None], folder: Path, store: Store, bucket: Url
) -> None:
    url = upload(folder, bucket)
    assert shardwright.verify(str(url), against=store.root, workers=1).findings == []
    change(store)
    (here,) = shardwright.verify(folder, against=store.root, workers=1).findings
    (there,) = shardwright.verify(str(url), against=store.root, workers=1).findings
    assert here.kind in ("outdated", "not_compared")
    assert (there.kind, there.file, there.sample) == (here.kind, here.file, here.sample)
    assert there.what == here.what
    assert "--sync" not in there.fix


def test_a_rotten_array_of_the_store_is_no_fault_of_the_shards_alone(
    folder: Path, store: Store, bucket: Url
) -> None:
    """The shard is at the URL since later than the array has changed, so it is not outdated."""
    local.longer_array(store)
    report = shardwright.verify(str(upload(folder, bucket)), against=store.root, workers=1)
    assert [(one.kind, one.sample, one.member) for one in report.findings] == [
        ("source_differs", "img0", "t5h.npy")
    ]
    assert report.findings[0].fix == (
        "if the store is right, pack again to another URL with --shard-size 2"
    )


def test_shards_at_a_url_are_packed_to_another_one_with_all_that_chose_their_samples(
    tmp_path: Path, output: Path, bucket: Url
) -> None:
    records = [record(f"img{number}", "24x16", rating=1) for number in range(9)]
    store = make_store(tmp_path / "derived", records, latent=local.latent)
    (tmp_path / "bad.txt").write_text("img8\n")
    chosen: dict[str, Any] = {"where": "rating > 0", "exclude_ids_file": tmp_path / "bad.txt"}
    pack(derived_dir=store.root, output_dir=output, shard_size=4, **chosen)
    shutil.copy(output / SECOND, output / FIRST)
    with pytest.raises(DamageError) as raised:
        list(shardwright.open(str(upload(output, bucket))))
    assert (
        "or pack again to another URL with --where 'rating > 0' --shard-size 4 "
        "--exclude-ids-file FILE ("
    ) in str(raised.value)


def test_an_unfinished_pack_at_a_url_is_found(store: Store, output: Path, bucket: Url) -> None:
    with using(KillingDisk(37)), pytest.raises(Killed):
        pack(derived_dir=store.root, output_dir=output, shard_size=2, workers=1)
    report = shardwright.verify(str(upload(output, bucket)), read_data=True, workers=1)
    assert [one.kind for one in report.findings] == ["unfinished"]
    assert report.findings[0].fix == (
        "if none is active, finish it with the same pack and --resume"
    )


def test_an_unfinished_build_at_a_url_is_found(bucket: Url) -> None:
    begun = Unfinished(
        append=False,
        plan="p",
        settings=PackSettings(buckets=[], shard_size=4, shuffle=False, seed=0, limit=None),
        replaces=[],
        base=None,
        build={},
    )
    manifest.save_unfinished(bucket / "shards", begun)
    (found,) = shardwright.verify(f"{bucket}/shards").findings
    assert (found.kind, found.file) == ("unfinished", ".shardwright/unfinished.json")
    assert found.fix == "if none is active, run the same shardwright build again"


def test_a_number_may_be_missing_where_no_sample_of_a_shard_could_be_made(
    folder: Path, bucket: Url
) -> None:
    for name in (FIRST, *(f".shardwright/index/{FIRST[:-4]}.{end}" for end in ("idx", "jsonl"))):
        (folder / name).unlink()
    listed = manifest.load_manifest(folder)
    assert listed is not None
    first, *rest = listed.shards
    run = msgspec.structs.replace(listed.runs[0], samples=6 - first.samples, shards=len(rest))
    left = msgspec.structs.replace(listed, runs=[run], shards=rest)
    manifest.save_manifest(folder, left)
    manifest.save_sha256(folder, left)
    url = upload(folder, bucket)
    report = shardwright.verify(str(url), read_data=True, loaders=True, workers=1)
    assert (report.findings, report.checked) == ([], {"shards": 3, "samples": 4})
    shardwright.index(str(url), for_=list(LOADERS))
    assert shardwright.verify(str(url), loaders=True, workers=1).findings == []
    assert previews(str(url)).source.table.ids == ["img4", "img1", "img3", "img5"]


def test_loaders_are_judged_as_in_a_folder(folder: Path, bucket: Url) -> None:
    (folder / "bucket_24x16/notes.txt").write_text("visible")
    here = shardwright.verify(folder, loaders=True, workers=1)
    there = shardwright.verify(str(upload(folder, bucket)), loaders=True, workers=1)
    assert here.loaders is not None
    assert here.loaders["hf"] == "fail"
    assert there.loaders == here.loaders
    assert said(there) == said(here)


def test_verify_asks_the_store_for_little(
    packed: Path, bucket: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each shard: its size, its index, its records and their size, and two headers."""
    url = upload(packed / "shards", bucket)
    with counted(monkeypatch) as counts:
        shardwright.verify(str(url), workers=1)
    assert counts == {"head": 2 + 1 + 2 * 4, "list": 1, "get": 3 + 4 * 4}


# A shard in one pass


def test_a_file_at_a_url_is_fetched_once_whatever_is_read_of_it(
    bucket: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members are read like the samples of a shard: their starts, then all of each."""
    draw, data = random.Random(0), random.Random(1).randbytes(30_000_000)
    (bucket / "big").write(data)
    hasher, sample, starts = xxhash.xxh3_128(), 2_000_000, 0
    with counted(monkeypatch) as counts, RemoteFile(bucket / "big") as file:
        passing = OnePass(file, [hasher])
        for start in range(0, len(data), sample):
            for offset in sorted(draw.randrange(start, start + sample) for _ in range(20)):
                assert passing.pread(offset, 1536) == data[offset : offset + 1536]
                starts += 1
            assert passing.pread(start, sample) == data[start : start + sample]
        passing.read_until(passing.size)
        assert passing.pread(10, 10) == data[10:20]  # not kept any more
        assert passing.pread(len(data), 10) == b""
    assert hasher.hexdigest() == xxhash.xxh3_128_hexdigest(data)
    assert starts == 300
    assert counts["get"] <= 3 + 4 + 1  # two to see that it is read in order, then blocks


def test_a_file_that_becomes_shorter_while_it_is_read_ends_there(tmp_path: Path) -> None:
    class Shrinking:
        size = 1_000_000

        def pread(self, offset: int, size: int) -> bytes:
            return bytes(max(0, min(size, 600_000 - offset)))

    passing = OnePass(Shrinking())
    assert len(passing.pread(0, 900_000)) == 600_000
    assert passing.size == 600_000


# index


def test_index_files_at_a_url_are_those_of_the_folder(folder: Path, bucket: Url) -> None:
    url = upload(folder, bucket)
    before = objects(url)
    here = shardwright.index(folder, for_=list(LOADERS))
    there = shardwright.index(str(url), for_=list(LOADERS))
    assert (there.written, there.shards) == (here.written, str(url))
    assert objects(url) == files(folder) | {".shardwright/lock": b""}
    verdicts = shardwright.verify(str(url), loaders=True, workers=1).loaders
    assert verdicts == shardwright.verify(folder, loaders=True, workers=1).loaders
    removed = shardwright.index(str(url), for_=list(LOADERS), remove=True).removed
    assert removed == sorted(here.written)
    assert objects(url) == before


def test_a_file_at_a_url_that_index_did_not_write_is_left_alone(packed: Path, bucket: Url) -> None:
    url = upload(packed / "shards", bucket)
    (url / ".wids.json").write(b"of somebody else")
    before = objects(url)
    with pytest.raises(UsageError, match=r"shards/\.wids\.json: was not written by shardwright"):
        shardwright.index(str(url), for_=["energon", "wids"])
    after = objects(url)
    assert after[".wids.json"] == b"of somebody else"
    assert before.items() <= after.items()
    shardwright.index(str(url), for_="energon", remove=True)
    assert objects(url) == before


def test_an_index_run_that_stopped_in_the_middle_is_continued(
    packed: Path, bucket: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if other files are to be written then: the first run has recorded its own."""
    url = upload(packed / "shards", bucket)
    write, left = Url.write, 3

    def failing(self: Url, data: bytes, condition: str | None = None) -> str:
        nonlocal left
        left -= 1
        if left < 0:
            raise StorageError("lost", path=self)
        return write(self, data, condition)

    with monkeypatch.context() as patch:
        patch.setattr(Url, "write", failing)
        with pytest.raises(StorageError, match="lost"):
            shardwright.index(str(url), for_="dali")
    there = [name for name in objects(url) if name.startswith(".dali/")]
    assert len(there) == 2
    shardwright.index(str(url), for_="dali", remove=True)
    assert objects(url) == files(packed / "shards") | {".shardwright/lock": b""}


# What cannot be used


def test_what_is_no_shard_folder_at_a_url_is_refused(bucket: Url, tmp_path: Path) -> None:
    (bucket / "other/notes.txt").write(b"x")
    with pytest.raises(InputMissingError, match=f"^{bucket}/nothing: no such folder"):
        shardwright.verify(f"{bucket}/nothing")
    with pytest.raises(UsageError, match=f"^{bucket}/other: is not a store .* and not a shard"):
        shardwright.verify(f"{bucket}/other")
    with pytest.raises(UsageError, match=f"^{bucket}/other/notes.txt: is a file"):
        shardwright.verify(f"{bucket}/other/notes.txt")
    with pytest.raises(InputMissingError, match=f"^{bucket}/nothing: no such folder"):
        shardwright.index(f"{bucket}/nothing", for_="wids")
    with pytest.raises(InputMissingError, match=f"^{bucket}/other: has no manifest"):
        shardwright.index(f"{bucket}/other", for_="wids")
    with pytest.raises(InputMissingError, match=f"^{bucket}/nothing: has no .shardwright/manifest"):
        shardwright.look(f"{bucket}/nothing", report=tmp_path / "x.html")


CALLS: list[Callable[[str, Path], object]] = [
    lambda url, _: shardwright.verify(url),
    lambda url, _: shardwright.index(url, for_="wids"),
    lambda url, tmp_path: shardwright.look(url, report=tmp_path / "x.html"),
]


@contextmanager
def checked_keys(moto: str) -> Iterator[None]:
    """Let moto refuse keys that it does not know, which are all."""
    address, kind = f"{moto}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(address, b"0", kind)).close()
    try:
        yield
    finally:
        urllib.request.urlopen(urllib.request.Request(address, b"Infinity", kind)).close()


@pytest.mark.parametrize("call", CALLS, ids=["verify", "index", "look"])
def test_a_store_that_refuses_is_an_error_with_the_url_and_the_fix(
    call: Callable[[str, Path], object],
    moto: str,
    bucket: Url,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(StorageError, match=r"^s3://no-such-bucket.*NoSuchBucket.*; make the buck"):
        call("s3://no-such-bucket/shards", tmp_path)
    with checked_keys(moto), pytest.raises(StorageError, match=f"^{bucket}/shards") as refused:
        call(f"{bucket}/shards", tmp_path)
    assert refused.value.fix
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(refused.value)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    urls._store.cache_clear()
    with pytest.raises(StorageError, match=r"^s3://.*; set AWS_ACCESS_KEY_ID"):
        call(f"{bucket}/shards", tmp_path)


def test_other_urls_are_refused_with_those_that_can_be_used() -> None:
    for place in ("http://127.0.0.1/shards", "s3://", "hf://x"):
        with pytest.raises(UsageError, match="give s3://BUCKET/FOLDER"):
            shardwright.verify(place)
    with pytest.raises(UsageError, match="is a URL; give a folder or file of this machine"):
        shardwright.verify("s3://bucket/shards", against="s3://bucket/derived")
