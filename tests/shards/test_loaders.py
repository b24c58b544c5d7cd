"""Other loaders on our shards: the index files we write for them, and the libraries themselves.

webdataset and Hugging Face datasets are in the dev extra; ``peers`` runs the others.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardwright
from shardwright.recipes import Recipe
from shardwright.shards.loaders.indexes import LOADERS
from shardwright.storage import files
from shardwright.storage.disk import Disk
from shardwright.storage.local import LocalPlace
from tests.faults import Killed, KillingDisk, WatchedDisk
from tests.shards import peers, varied
from tests.shards.packed import assert_same, assert_sample, expected, packed
from tests.store.small import small_store

SAMPLES = 12
OTHERS = {"sdxl": varied.SDXL, "varied": varied.VARIED}
ALL = list(LOADERS)
IDS = {f"img{number}" for number in range(SAMPLES)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("made"), SAMPLES)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Shards of other recipes, with every index."""
    root = tmp_path_factory.mktemp("others")
    found = {name: varied.packed(root / name, SAMPLES, OTHERS[name]) for name in OTHERS}
    for folder in found.values():
        shardwright.index(folder, for_=ALL)
    return found


def assert_other(sample: dict[str, Any], recipe: Recipe) -> None:
    """Fail unless a sample of such shards is right; others see bfloat16 as its bits."""
    number = int(sample["json"]["image_id"].removeprefix("img"))
    for name, values in varied.arrays(number, recipe).items():
        array = varied.bits(values) if recipe.arrays[name].dtype == "bfloat16" else values
        assert_same(np.asarray(sample[name], array.dtype), array)
    if "picture.webp" in recipe.suffixes:
        found, data = sample["picture.webp"], varied.picture(number)
        if isinstance(found, bytes | io.BytesIO):
            assert (found if isinstance(found, bytes) else found.getvalue()) == data
        else:  # the loader has decoded it
            pixels = np.asarray(found)
            pixels = pixels if pixels.dtype == np.uint8 else pixels.transpose(1, 2, 0) * 255
            np.testing.assert_allclose(pixels, np.asarray(Image.open(io.BytesIO(data))), atol=0.01)


@pytest.fixture
def shards(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "shards")
    return tmp_path / "shards"


OURS = ("lock", "loaders.json")  # what index writes for itself


def tree(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in OURS]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def tars(shards: Path) -> list[str]:
    return sorted(map(str, shards.glob("bucket_*/*.tar")))


@pytest.mark.filterwarnings("ignore")  # webdataset leaves its files to the garbage collector
def test_webdataset_reads_the_shards(made: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    found = set()
    for sample in webdataset.WebDataset(tars(made), shardshuffle=False).decode():
        assert_sample(sample, sample["__key__"])
        found.add(sample["__key__"])
    assert found == IDS


def hf_samples(*arguments: Any, **options: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    os.environ["HF_HUB_OFFLINE"] = "1"  # before it is imported: nothing is to be looked up
    datasets = pytest.importorskip("datasets")
    return list(datasets.load_dataset(*arguments, split="train", streaming=True, **options))


def assert_hf(samples: list[dict[str, Any]], ids: set[str]) -> None:
    for sample in samples:  # its columns are lists, so the dtypes are the features'
        for name, values in expected(sample["json"]["image_id"]).items():
            assert_same(np.asarray(sample[name], values.dtype), values)
    assert {sample["json"]["image_id"] for sample in samples} == ids
    assert len(samples) == len(ids)


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_reads_the_shards_as_files_as_a_folder_and_by_bucket(shards: Path) -> None:
    files_of = {"train": f"{shards}/bucket_*/*.tar"}
    assert_hf(hf_samples("webdataset", data_files=files_of), IDS)
    assert_hf(hf_samples("webdataset", data_dir=str(shards)), IDS)
    shardwright.index(shards, for_=ALL)  # with the card, the files of others do no harm
    assert_hf(hf_samples(str(shards)), IDS)
    odd = {f"img{number}" for number in range(1, SAMPLES, 2)}
    assert_hf(hf_samples(str(shards), "96x64"), odd)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", ["sdxl", "varied"])
def test_webdataset_and_hugging_face_read_shards_of_other_recipes(
    others: dict[str, Path], recipe: str
) -> None:
    webdataset = pytest.importorskip("webdataset")
    shards = others[recipe]
    plain = webdataset.WebDataset(tars(shards), shardshuffle=False)
    for found in (
        list(plain.decode()),
        list(plain.decode("pil")),
        hf_samples(str(shards)),
        hf_samples("webdataset", data_files={"train": f"{shards}/bucket_*/*.tar"}),
    ):
        for sample in found:
            assert_other(sample, OTHERS[recipe])
        assert {sample["json"]["image_id"] for sample in found} == IDS
    assert set((shardwright.verify(shards, loaders=True, workers=1).loaders or {}).values()) == {
        "pass"
    }


@pytest.mark.timeout(600)  # Ray starts ten processes, which takes a minute on a busy machine
@pytest.mark.parametrize("name", peers.LOADERS)
def test_others_read_the_shards_with_the_index_written_for_them(
    shards: Path, others: dict[str, Path], name: str
) -> None:
    if name != "ray" and not (peers.FOLDER / name).is_dir():  # which is in the dev extra
        pytest.skip("make test installs it")
    shardwright.index(shards, for_=ALL)
    found = peers.run(name, shards.parent / "samples", shards, *others.values())
    for sample in found[0]:
        assert_sample(sample, sample["json"]["image_id"])
    assert sorted(sample["json"]["image_id"] for sample in found[0]) == sorted(IDS)
    for samples, recipe in zip(found[1:], others, strict=True):
        for sample in samples:
            assert_other(sample, OTHERS[recipe])
        assert {sample["json"]["image_id"] for sample in samples} == IDS


def read_member(shard: Path, offset: int, size: int) -> bytes:
    with shard.open("rb") as file:
        return os.pread(file.fileno(), size, offset)


def member_bytes(shard: Path) -> dict[str, bytes]:
    """Read a shard with tarfile."""
    import tarfile

    with tarfile.open(shard) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


def test_energon_index_points_at_the_samples(shards: Path) -> None:
    shardwright.index(shards, for_="energon")
    for path in map(Path, tars(shards)):
        starts = array("Q", path.with_suffix(".tar.idx").read_bytes())
        data = path.read_bytes()
        samples = len(member_bytes(path)) // 5
        assert len(starts) == samples + 1
        for start in starts[:-1]:
            assert data[start : start + 100].rstrip(b"\0").endswith(b".json")
        assert starts[-1] == len(data) - 1024
    meta = shards / ".nv-meta"
    counts = json.loads((meta / ".info.json").read_text())["shard_counts"]
    assert sum(counts.values()) == SAMPLES
    parts = json.loads((meta / "split.yaml").read_text())["split_parts"]
    assert parts == {"train": list(counts), "val": [], "test": []}


def test_dali_index_names_every_member_and_its_place(shards: Path) -> None:
    shardwright.index(shards, for_="dali")
    for path in map(Path, tars(shards)):
        listed = shards / ".dali" / path.parent.name / f"{path.stem}.idx"
        head, *lines = listed.read_text().splitlines()
        members = member_bytes(path)
        assert head == f"v1.2 {len(lines)}"
        found = {}
        for line in lines:
            words = line.split()
            for extension, offset, size, name in zip(*[iter(words)] * 4, strict=True):
                assert name.partition(".")[2] == extension
                assert int(offset) % 512 == 0
                found[name] = read_member(path, int(offset), int(size))
        assert found == members


def test_wids_index_lists_the_shards(shards: Path) -> None:
    shardwright.index(shards, for_="wids")
    listed = json.loads((shards / ".wids.json").read_text())
    assert (listed["__kind__"], listed["wids_version"]) == ("wids-shard-index-v1", 1)
    for shard in listed["shardlist"]:
        path = shards / shard["url"]
        assert shard["filesize"] == path.stat().st_size
        assert shard["nsamples"] == len(member_bytes(path)) // 5
    assert [str(shards / shard["url"]) for shard in listed["shardlist"]] == tars(shards)


def test_webshart_index_points_at_the_members(shards: Path) -> None:
    shardwright.index(shards, for_="webshart")
    for path in map(Path, tars(shards)):
        listed = json.loads(path.with_suffix(".json").read_text())
        assert listed["filesize"] == path.stat().st_size
        found = {
            name: read_member(path, where["offset"], where["length"])
            for name, where in listed["files"].items()
        }
        assert found == member_bytes(path)


def test_the_card_tells_counts_and_provenance(shards: Path) -> None:
    shardwright.index(shards, for_="hf")
    card = (shards / "README.md").read_text()
    assert "12 samples of `json`, `dinov3.npy`, `vae.npy`, `t5h.npy`, `t5m.npy` in 4 Web" in card
    assert "| 64x64 | 6 | 2 |" in card
    assert f"- run 0 (shardwright {shardwright.__version__}): 12 samples in 4 shards" in card


def test_a_card_of_somebody_else_is_left_alone(shards: Path) -> None:
    (shards / "README.md").write_text("mine")
    before = tree(shards)
    with pytest.raises(shardwright.UsageError, match=r"README\.md: was not written by shardwright"):
        shardwright.index(shards, for_=["energon", "hf"])
    assert shardwright.index(shards, for_="hf", remove=True).removed == []
    assert tree(shards) == before


CONFIG = "license: mit\nconfigs_of_mine: 1\n"


def appended(shards: Path) -> None:
    """Pack samples of another store too, so that every index changes."""
    store = small_store(shards.parent / "more", 16)
    options = {"derived_dir": store.root, "output_dir": shards, "workers": 1}
    shardwright.pack(**options, append=True)  # type: ignore[arg-type]


def test_what_somebody_wrote_into_the_card_stays(shards: Path) -> None:
    shardwright.index(shards, for_="hf")
    path = shards / "README.md"
    made = path.read_text()
    title = f"# {shards.name}\n"
    edited = made.replace("- text-to-image\n", f"- text-to-image\n{CONFIG}")
    edited = edited.replace(title, "# Cats\n\nBy me.\n") + "\nThanks to all.\n"
    path.write_text(edited)
    shardwright.index(shards, for_="hf")
    assert path.read_text() == edited
    appended(shards)
    assert shardwright.index(shards, for_="hf").written == ["README.md"]
    renewed = path.read_text()
    assert "16 samples of" in renewed
    (shards / "README.md").unlink()
    shardwright.index(shards, for_="hf")
    fresh = path.read_text().replace("- text-to-image\n", f"- text-to-image\n{CONFIG}")
    assert renewed == fresh.replace(title, "# Cats\n\nBy me.\n") + "\nThanks to all.\n"
    path.write_text(renewed)
    with pytest.raises(shardwright.UsageError, match=r"README\.md: .* or was edited since; move"):
        shardwright.index(shards, for_="hf", remove=True)
    assert path.read_text() == renewed


def test_a_card_whose_own_part_was_edited_is_left_alone(shards: Path) -> None:
    shardwright.index(shards, for_="hf")
    path = shards / "README.md"
    path.write_text(path.read_text().replace("12 samples", "A dozen samples"))
    before = tree(shards)
    for remove in (False, True):
        with pytest.raises(shardwright.UsageError, match=r"README\.md: .* or was edited since"):
            shardwright.index(shards, for_=["hf", "wids"], remove=remove)
    assert tree(shards) == before


@pytest.mark.parametrize(("loader", "name"), [("hf", "README.md"), ("wids", ".wids.json")])
def test_a_link_to_nowhere_is_somebody_elses(shards: Path, loader: str, name: str) -> None:
    (shards / name).symlink_to("/not/mounted/now")
    with pytest.raises(shardwright.UsageError, match=f"{name}: was not written by shardwright"):
        shardwright.index(shards, for_=loader)
    assert (shards / name).readlink() == Path("/not/mounted/now")


@pytest.mark.parametrize(
    ("loader", "name"),
    [
        ("webshart", "bucket_64x64/shard-000000.json"),
        ("energon", ".nv-meta/dataset.yaml"),
        ("energon", "bucket_64x64/shard-000000.tar.idx"),
        ("wids", ".wids.json"),
        ("dali", ".dali/bucket_64x64/shard-000000.idx"),
    ],
)
def test_files_of_somebody_else_are_neither_replaced_nor_removed(
    shards: Path, loader: str, name: str
) -> None:
    path = shards / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("mine")
    refused = f"{path.name}: was not written by shardwright index, or was edited since; move it"
    with pytest.raises(shardwright.UsageError, match=refused):
        shardwright.index(shards, for_=loader)
    shardwright.index(shards, for_=loader, remove=True)
    assert path.read_text() == "mine"
    path.unlink()
    shardwright.index(shards, for_=loader)
    path.write_text("changed")
    for remove in (False, True):
        with pytest.raises(shardwright.UsageError, match=refused):
            shardwright.index(shards, for_=loader, remove=remove)
    assert path.read_text() == "changed"


def test_files_beside_index_files_stay(shards: Path) -> None:
    shardwright.index(shards, for_=ALL)
    own = [".nv-meta/index.sqlite", "bucket_64x64/shard-999999.json", "bucket_64x64/note.json"]
    for name in own:
        (shards / name).write_text("mine")
    shardwright.index(shards, for_=ALL)
    report = shardwright.verify(shards, loaders=True, workers=1)
    assert report.loaders is not None
    assert set(report.loaders.values()) == {"pass"}
    shardwright.index(shards, for_=ALL, remove=True)
    assert [(shards / name).read_text() for name in own] == ["mine"] * 3


@pytest.mark.parametrize("loader", ALL)
def test_index_files_can_be_removed_again(shards: Path, loader: str) -> None:
    before, folders = tree(shards), set(shards.rglob("*"))
    summary = shardwright.index(shards, for_=[loader])
    assert sorted(summary.written) == sorted(tree(shards).keys() - before.keys())
    assert summary.written
    again = shardwright.index(shards, for_=[loader])
    assert (again.written, again.removed) == (summary.written, [])
    removed = shardwright.index(shards, for_=[loader], remove=True)
    assert removed.removed == sorted(summary.written)
    assert tree(shards) == before
    assert set(shards.rglob("*")) == folders


def test_files_of_shards_that_are_gone_are_removed(tmp_path: Path) -> None:
    shards = packed(tmp_path, SAMPLES, shard_size=2)
    shardwright.index(shards, for_=ALL)
    options = {"derived_dir": tmp_path / "derived", "output_dir": shards, "workers": 1}
    shardwright.pack(**options, overwrite=True)  # type: ignore[arg-type]
    summary = shardwright.index(shards, for_=ALL)
    assert "bucket_64x64/shard-000002.tar.idx" in summary.removed
    assert "bucket_64x64/shard-000001.json" in summary.removed
    fresh = packed(tmp_path / "fresh", SAMPLES, shard_size=1000)
    shardwright.index(fresh, for_=ALL)
    other = {name: data for name, data in tree(fresh).items() if "README" not in name}
    same = {name: data for name, data in tree(shards).items() if "README" not in name}
    assert same.keys() == other.keys()


class Full(Disk):
    """A disk that fills up after some writes."""

    def __init__(self, writes: int) -> None:
        self.left = writes

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device")
        return super().write(fd, data)


@pytest.mark.parametrize("writes", [0, 1, 4, 6])
def test_a_full_disk_leaves_only_complete_files(shards: Path, writes: int) -> None:
    whole = shards.parent / "whole"
    shutil.copytree(shards, whole)
    shardwright.index(whole, for_="energon")
    with files.using(Full(writes)), pytest.raises(shardwright.NoSpaceError):
        shardwright.index(shards, for_="energon")
    complete = tree(whole)
    assert all(complete[name] == data for name, data in tree(shards).items())
    assert ".nv-meta/.info.json" not in tree(shards)
    shardwright.index(shards, for_="energon")
    assert tree(shards) == complete


@pytest.mark.parametrize("writes", [0, 4, 9])
def test_a_full_disk_leaves_no_new_file_beside_old_ones(tmp_path: Path, writes: int) -> None:
    shards, new = packed(tmp_path, 6, shard_size=2), packed(tmp_path / "new", 4)
    shardwright.index(shards, for_=ALL)
    repack(shards, new)
    before = tree(shards)
    with files.using(Full(writes)), pytest.raises(shardwright.NoSpaceError):
        shardwright.index(shards, for_=ALL)
    assert tree(shards) == before


def test_each_folder_is_synced_once_for_all_its_files(tmp_path: Path) -> None:
    shards = packed(tmp_path, SAMPLES, shard_size=2)
    shardwright.index(shards, for_=["energon", "webshart"])  # so that the folders are there
    for path in shards.glob("bucket_*/*.idx"):
        path.unlink()
    with files.using(watched := WatchedDisk()):
        shardwright.index(shards, for_=["energon", "webshart"])
    synced = [Path(call.path) for call in watched.calls if call.name == "fsync_folder"]
    for folder in [*shards.glob("bucket_*"), shards / ".nv-meta"]:
        assert synced.count(folder) == 1


@pytest.mark.parametrize("remove", [False, True])
def test_what_a_run_that_was_killed_has_left_is_known_after_another_packing(
    tmp_path: Path, remove: bool
) -> None:
    old = packed(tmp_path / "old", 6, shard_size=2)
    shardwright.index(old, for_=["webshart"])  # so that one loader's files are there before
    shards, new = tmp_path / "shards", packed(tmp_path / "new", 4)
    bare = tree(new)
    shutil.copytree(new, shards)
    shardwright.index(shards, for_=ALL)
    fresh = {name: data for name, data in tree(shards).items() if name != "README.md"}
    shutil.copytree(old, tmp_path / "counted")
    with files.using(watched := WatchedDisk()):
        shardwright.index(tmp_path / "counted", for_=ALL)
    for nth in range(1, len(watched.calls) + 1, 5):
        shutil.rmtree(shards)
        shutil.copytree(old, shards)
        with files.using(KillingDisk(nth)), pytest.raises(Killed):
            shardwright.index(shards, for_=ALL)
        repack(shards, new)
        shardwright.index(shards, for_=ALL, remove=remove)
        left = {name: data for name, data in tree(shards).items() if name != "README.md"}
        assert left == (bare if remove else fresh), f"killed at call {nth}"
        assert (shards / "README.md").exists() is not remove
        if remove:
            assert not (shards / ".shardwright/loaders.json").exists()


def repack(shards: Path, new: Path) -> None:
    """Put other shards in the place of those that are there, as pack does."""
    for path in [*shards.glob("bucket_*/*.tar"), *(shards / ".shardwright").rglob("*")]:
        if path.is_file() and path.name not in OURS and "loaders" not in path.name:
            path.unlink()
    shutil.copytree(new, shards, dirs_exist_ok=True)


def test_unknown_loaders_and_folders_without_a_manifest_are_refused(
    shards: Path, tmp_path: Path
) -> None:
    with pytest.raises(shardwright.UsageError, match="--for spark: no such loader; there are ener"):
        shardwright.index(shards, for_=["spark"])
    with pytest.raises(shardwright.UsageError, match="--for: no loader given; there are energon"):
        shardwright.index(shards)
    with pytest.raises(shardwright.InputMissingError, match="no such folder"):
        shardwright.index(tmp_path / "nowhere", for_=["hf"])
    shutil.rmtree(shards / ".shardwright")
    with pytest.raises(shardwright.InputMissingError, match="has no manifest; pack or build it"):
        shardwright.index(shards, for_=["hf"])


def test_a_folder_that_is_being_packed_is_left_alone(shards: Path) -> None:
    with LocalPlace(shards).lease(), pytest.raises(shardwright.LockedError):
        shardwright.index(shards, for_=["hf"])


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shardwright", "index", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_index_command_says_what_it_wrote(shards: Path) -> None:
    done = command(shards, "--for", "wids", "--for", "hf")
    assert done.stdout == (f"{shards}: index files for wids, hf\n  wrote .wids.json, README.md\n")
    done = command(shards, "--for", "wids", "--remove", "--json")
    assert json.loads(done.stdout) == {
        "shards": str(shards),
        "loaders": ["wids"],
        "written": [],
        "removed": [".wids.json"],
    }
    done = command(shards, "--for", "wids", "--remove")
    assert done.stdout == f"{shards}: index files for wids: there were none\n"
    assert command(shards, "--for", "nothing").returncode == 2
    assert command(shards).returncode == 2
