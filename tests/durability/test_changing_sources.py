"""A source that changes between scan and copy never enters a shard half old and half new.

Four moments (after the scan, after the plan, when a shard is begun, in the middle of copying) and
four changes (written to, truncated, replaced, deleted), to an array and to the JSONL: either the
run stops and says so, or the shard holds one whole version.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardwright import Progress, ShardwrightError, SourceChangedError, pack, verify
from shardwright.storage.files import using
from tests.faults import Call, WatchedDisk, contents
from tests.stores import Store, array, line, make_store, npy, record
from tests.tars import all_ids

LARGE = (16, 384, 704)  # 8.7 MB, more than two buffers: the first is written before the end is read
TARGET = "img0"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    two = [record(f"img{number}", "5632x3072") for number in range(2)]
    return make_store(tmp_path / "derived", two, latent=LARGE)


Change = Callable[[Path], None]


def write_to(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"changed!")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    new = path.with_name("new")
    if path.suffix == ".npy":
        new.write_bytes(npy(array("vae", "another", LARGE)))
    else:
        fields = [record(f"img{number}", "5632x3072", caption="other") for number in range(2)]
        new.write_bytes(b"".join(line(f) + b"\n" for f in fields))
    new.rename(path)


def delete(path: Path) -> None:
    path.unlink()


def put_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


class AtPhase(Progress):
    """Does something once, when a phase begins."""

    def __init__(self, phase: str, act: Callable[[], None]) -> None:
        self.when, self.act = phase, act

    def phase(self, name: str, total: int, unit: str) -> None:
        if name == self.when:
            self.act()


class AtCall(WatchedDisk):
    """Does something once, before the first call of a kind."""

    def __init__(self, call: str, act: Callable[[], None]) -> None:
        super().__init__()
        self.when, self.act = call, act
        self.done = False

    def before(self, call: Call) -> None:
        if call.name == self.when and call.path.endswith(".tar.tmp") and not self.done:
            self.done = True
            self.act()


MOMENTS = ("after the scan", "after the plan", "when a shard is begun", "while it is copied")


def pack_with(store: Store, output: Path, moment: str, act: Callable[[], None]) -> None:
    progress: Progress | None = None
    disk = WatchedDisk()
    if moment == "after the scan":
        progress = AtPhase("check", act)
    elif moment == "after the plan":
        progress = AtPhase("write", act)
    else:
        disk = AtCall("create" if moment == "when a shard is begun" else "write", act)
    with using(disk):
        pack(derived_dir=store.root, output_dir=output, workers=1, progress=progress)


def error_of(run: Callable[[], None]) -> str:
    """Run, and give what is told of a source that changed, or nothing."""
    try:
        run()
    except SourceChangedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("change", [write_to, truncate, replace, delete])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_array_enters_whole_or_the_run_stops(
    moment: str, change: Change, store: Store, output: Path
) -> None:
    path = store.array("vae", TARGET)
    old = path.read_bytes()
    replaced = npy(array("vae", "another", LARGE))
    if told := error_of(lambda: pack_with(store, output, moment, lambda: change(path))):
        assert f"{path}: changed while it was read" in told
        assert "run the same pack with --resume" in told
        assert not list(output.glob("bucket_*/*"))
        return
    if moment == "after the scan" and change in (truncate, delete):
        assert packed_array(output) is None  # it was skipped, with its reason
        return
    versions = [old, replaced, old[:-8] + b"changed!"]
    assert packed_array(output) in versions
    assert not [f for f in verify(output, read_data=True).findings if f.damage]


def packed_array(output: Path) -> bytes | None:
    with tarfile.open(next(output.glob("bucket_*/*.tar"))) as tar:
        try:
            file = tar.extractfile(f"{TARGET}.vae.npy")
        except KeyError:
            return None
        assert file is not None
        return file.read()


def test_a_write_while_the_array_is_copied_stops_the_run(store: Store, output: Path) -> None:
    """The one case in which a shard would hold half of each, were it not looked for."""
    path = store.array("vae", TARGET)
    with pytest.raises(
        SourceChangedError, match=r"img0\.npy: changed while it was read \(written to or replaced\)"
    ):
        pack_with(store, output, MOMENTS[3], lambda: write_to(path))


@pytest.mark.parametrize("change", [write_to, truncate, replace, delete])
@pytest.mark.parametrize("moment", MOMENTS)
def test_records_enter_of_one_version_or_the_run_stops(
    moment: str, change: Change, store: Store, output: Path
) -> None:
    captions = {fields["caption"] for fields in store.records}
    if told := error_of(lambda: pack_with(store, output, moment, lambda: change(store.jsonl))):
        assert f"{store.jsonl}: changed while" in told
        assert not list(output.glob("bucket_*/*"))
        return
    found = set()
    with tarfile.open(next(output.glob("bucket_*/*.tar"))) as tar:
        for member in tar:
            if member.name.endswith(".json"):
                file = tar.extractfile(member)
                assert file is not None
                found.add(file.read().split(b'"caption":"')[1].split(b'"')[0].decode())
    assert found == captions


@pytest.mark.parametrize("moment", MOMENTS[:3])
def test_a_folder_of_arrays_that_goes_is_told(moment: str, store: Store, output: Path) -> None:
    folder = store.root / "vae_latents"
    with pytest.raises(ShardwrightError, match=f"{folder}: "):
        pack_with(store, output, moment, lambda: os.rename(folder, store.root / "elsewhere"))
    assert not list(output.glob("bucket_*/*"))


def test_the_next_run_packs_what_is_there_then(store: Store, output: Path, tmp_path: Path) -> None:
    path = store.array("vae", TARGET)
    with pytest.raises(SourceChangedError):
        pack_with(store, output, MOMENTS[3], lambda: write_to(path))
    pack(derived_dir=store.root, output_dir=output, workers=1, resume=True)
    pack(derived_dir=store.root, output_dir=tmp_path / "unbroken", workers=1)
    assert contents(output) == contents(tmp_path / "unbroken")
    assert np.load(path).shape == LARGE


@pytest.mark.parametrize("change", [truncate, replace, delete, put_a_pipe])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_array_that_changes_after_the_plan_stops_any_number_of_workers(
    change: Change, workers: int, store: Store, output: Path
) -> None:
    path = store.array("vae", TARGET)
    progress = AtPhase("write", lambda: change(path))
    with pytest.raises(SourceChangedError, match=rf"^{path}: changed while it was read"):
        pack(
            derived_dir=store.root,
            output_dir=output,
            shard_size=1,
            workers=workers,
            progress=progress,
        )
    assert TARGET not in all_ids(output)
    assert not list(output.rglob("*.tmp"))
