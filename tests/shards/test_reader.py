"""The reader: the samples of a shard folder, without a copy, or a clear refusal."""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright
from shardwright.shards.format import index, tarread
from shardwright.shards.reader.catalog import Shard
from shardwright.shards.reader.dataset import Dataset
from shardwright.storage.local import LocalFile
from shardwright.storage.pieces import Piece, merge
from tests.shards.packed import assert_sample, expected, file_order, overwrite, packed
from tests.store.small import Array, small_store

SAMPLES = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("made"), SAMPLES)


@pytest.fixture
def shards(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(made, tmp_path / "shards")
    return tmp_path / "shards"


def first_shard(shards: Path) -> Path:
    return shards / "bucket_64x64" / "shard-000000.tar"


def place(shards: Path, member: str, sample: int = 0) -> tuple[int, int]:
    """Give the offset and size of a member of the first shard."""
    found = index.load(shards, "bucket_64x64/shard-000000.tar")
    where = found.member(sample, found.head.members.index(member))
    return where.offset, where.size


def without_manifest(shards: Path) -> Path:
    shutil.rmtree(shards / ".shardwright")
    return shards


def test_samples_are_those_of_the_store_in_file_order(made: Path) -> None:
    dataset = shardwright.open(made)
    assert len(dataset) == SAMPLES
    for position, image_id in enumerate(file_order(SAMPLES)):
        sample = dataset[position]
        assert list(sample) == ["__key__", "json", "dinov3.npy", "vae.npy", "t5h.npy", "t5m.npy"]
        assert sample["__key__"] == image_id
        assert_sample(sample, image_id)


def test_iterating_gives_every_sample_in_file_order(made: Path) -> None:
    samples = list(shardwright.open(made))
    assert [sample["__key__"] for sample in samples] == file_order(SAMPLES)
    for sample in samples:
        assert_sample(sample, sample["__key__"])


def test_positions_count_from_both_ends_and_no_further(made: Path) -> None:
    dataset = shardwright.open(made)
    assert dataset[-1]["__key__"] == file_order(SAMPLES)[-1]
    assert dataset[3]["__key__"] == file_order(SAMPLES)[3]
    for beyond in (SAMPLES, -SAMPLES - 1):
        with pytest.raises(IndexError, match=f"sample {beyond} of {SAMPLES}"):
            dataset[beyond]
    with pytest.raises(TypeError, match="slice"):
        dataset[0:1]  # type: ignore[index]


def owner(array: Array) -> object:
    found: Any = array
    while isinstance(found, np.ndarray):
        found = found.base
    return found.obj if isinstance(found, memoryview) else found


def test_arrays_map_the_shard_and_cannot_be_written_to(made: Path) -> None:
    sample = shardwright.open(made)[0]
    arrays = [value for value in sample.values() if isinstance(value, np.ndarray)]
    assert len(arrays) == 4
    assert isinstance(owner(arrays[0]), mmap.mmap)
    assert len({id(owner(array)) for array in arrays}) == 1
    with pytest.raises(ValueError, match="read-only"):
        sample["vae.npy"][0] = 0


def test_an_array_outlives_its_dataset(made: Path) -> None:
    array = shardwright.open(made)[0]["vae.npy"]
    np.testing.assert_array_equal(array, expected("img0")["vae.npy"])


def test_a_sample_is_found_by_its_id(made: Path) -> None:
    dataset = shardwright.open(made)
    assert_sample(dataset.by_id("img7"), "img7")
    with pytest.raises(KeyError, match="img99"):
        dataset.by_id("img99")


def test_ids_that_cannot_be_keys_are_found_too(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", 2)
    odd = "a b.c ü"
    for folder in ("dinov3", "vae_latents", "t5_hidden"):
        os.rename(store.root / folder / "img0.npy", store.root / folder / f"{odd}.npy")
    store.change(0, image_id=odd)
    shardwright.pack(derived_dir=store.root, output_dir=tmp_path / "shards", workers=1)
    sample = shardwright.open(tmp_path / "shards").by_id(odd)
    assert sample["__key__"] == "a%20b%2Ec%20%C3%BC"
    assert sample["json"]["image_id"] == odd
    np.testing.assert_array_equal(sample["vae.npy"], expected("img0")["vae.npy"])


def test_a_bucket_is_a_view(made: Path) -> None:
    dataset = shardwright.open(made)
    assert dataset.buckets == {"64x64": 6, "96x64": 6}
    view = dataset.bucket("96x64")
    assert view.buckets == {"96x64": 6}
    assert [s["__key__"] for s in view] == file_order(SAMPLES)[6:]
    assert_sample(view[0], "img1")
    assert_sample(view.by_id("img3"), "img3")
    with pytest.raises(KeyError):
        view.by_id("img0")
    with pytest.raises(shardwright.UsageError, match="bucket 1x1: not here; there are 64x64, 96x"):
        dataset.bucket("1x1")


def test_fields_leave_the_others_unread(shards: Path) -> None:
    offset, size = place(shards, "vae.npy")
    overwrite(first_shard(shards), offset, b"?" * size)
    dataset = shardwright.open(shards)
    some = dataset.fields("t5m.npy", "dinov3.npy")
    assert list(some[0]) == ["__key__", "t5m.npy", "dinov3.npy"]
    assert some[0]["__key__"] == "img0"
    np.testing.assert_array_equal(some[0]["dinov3.npy"], expected("img0")["dinov3.npy"])
    with pytest.raises(shardwright.DamageError, match=r"img0\.vae\.npy is damaged \(not npy\)"):
        dataset[0]
    with pytest.raises(shardwright.UsageError, match=r"field x\.npy: not here; there are json"):
        dataset.fields("x.npy")
    with pytest.raises(shardwright.UsageError, match=r"field json: not here; there are t5m\.npy"):
        some.fields("json")
    with pytest.raises(shardwright.UsageError, match=r"no name given; there are t5m\.npy, dinov3"):
        some.fields()


def test_shards_without_a_manifest_are_scanned_and_that_is_said(shards: Path) -> None:
    with pytest.warns(UserWarning, match="has no manifest; read the headers of 4 shards") as said:
        dataset = shardwright.open(without_manifest(shards))
    assert said[0].filename == __file__
    for sample, image_id in zip(dataset, file_order(SAMPLES), strict=True):
        assert_sample(sample, image_id)
    assert_sample(dataset.by_id("img5"), "img5")


@pytest.mark.filterwarnings("ignore:.*has no manifest")
def test_shards_of_another_writer_are_read(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    folder = tmp_path / "bucket_64x64"
    folder.mkdir()
    with webdataset.TarWriter(str(folder / "shard-000000.tar")) as tar:  # with PAX headers
        for name in ("a", "b"):
            tar.write({"__key__": name, "x.npy": np.full(3, ord(name), ">i4"), "note.txt": name})
    dataset = shardwright.open(tmp_path)
    assert [(s["__key__"], s["x.npy"].tolist(), s["note.txt"]) for s in dataset] == [
        ("a", [97] * 3, b"a"),
        ("b", [98] * 3, b"b"),
    ]


def tar(path: Path, members: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    with tarfile.open(path, "w", format=form) as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))


@pytest.mark.filterwarnings("ignore:.*has no manifest")
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_keys_that_no_plain_header_can_hold_are_complete(tmp_path: Path, form: int) -> None:
    names = ["äa", "folder/b", "c" * 150, f"{'d' * 60}/{'d' * 60}"]
    tar(tmp_path / "any.tar", {f"{name}.txt": name.encode() for name in names}, form)
    found = [(sample["__key__"], sample["txt"].decode()) for sample in shardwright.open(tmp_path)]
    assert found == [(name, name) for name in names]


@pytest.mark.filterwarnings("ignore:.*has no manifest")
def test_a_folder_of_nothing_but_tars_is_one_bucket(shards: Path, tmp_path: Path) -> None:
    dataset = shardwright.open(shards / "bucket_96x64")
    assert dataset.buckets == {"96x64": 6}
    assert [sample["__key__"] for sample in dataset] == file_order(SAMPLES)[6:]
    tar(tmp_path / "flat" / "any.tar", {"a.json": b"{}"})
    tar(tmp_path / "flat" / ".hidden.tar", {"b.json": b"{}"})
    assert shardwright.open(tmp_path / "flat").buckets == {"flat": 1}
    with pytest.raises(shardwright.UsageError, match=r"any\.tar: is a file; give the folder that"):
        shardwright.open(tmp_path / "flat" / "any.tar")


@pytest.mark.filterwarnings("ignore:.*has no manifest")
def test_shards_of_another_writer_that_make_no_sense_are_errors_of_ours(tmp_path: Path) -> None:
    tar(tmp_path / "empty" / "any.tar", {})
    with pytest.raises(shardwright.DamageError, match=r"any\.tar: has no samples, .*; .*remove"):
        shardwright.open(tmp_path / "empty")
    tar(tmp_path / "list" / "any.tar", {"a.json": b"[]"})
    dataset = shardwright.open(tmp_path / "list")
    with pytest.raises(shardwright.DamageError, match=r"a\.json is damaged \(not a JSON object"):
        list(dataset.batches(1))
    tar(tmp_path / "nameless" / "any.tar", {"a.json": b"{}"})
    with pytest.raises(shardwright.UsageError, match=r"a\.json has no image_id"):
        shardwright.open(tmp_path / "nameless").by_id("a")
    tar(tmp_path / "bare" / "any.tar", {"a.txt": b"a"})
    with pytest.raises(shardwright.UsageError, match="bare: samples have no JSON"):
        shardwright.open(tmp_path / "bare").by_id("a")
    record = b'{"image_id": "same"}'
    tar(tmp_path / "twice" / "any.tar", dict.fromkeys(("a.json", "b.json", "c.json"), record))
    dataset = shardwright.open(tmp_path / "twice")
    assert len(list(dataset)) == 3
    with pytest.raises(shardwright.UsageError, match="several samples have the id 'same'"):
        dataset.by_id("same")


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (700, "at byte 700"),
        (512, "byte 512"),
        (-1024, "end-of-archive blocks are missing"),
    ],
)
def test_a_shard_that_is_cut_off_is_refused(shards: Path, cut: int, reason: str) -> None:
    path = first_shard(shards)
    os.truncate(path, cut if cut > 0 else path.stat().st_size + cut)
    with pytest.raises(shardwright.DamageError, match="bytes, but the manifest says"):
        shardwright.open(shards)
    with pytest.raises(shardwright.DamageError, match=f"{path.name}: .*{reason}"):
        shardwright.open(without_manifest(shards))


def test_a_damaged_header_is_refused(shards: Path) -> None:
    overwrite(first_shard(shards), 0, b"another.json")
    with pytest.raises(shardwright.DamageError, match=r"differs from its index at byte 0"):
        shardwright.open(shards)[0]
    with pytest.raises(shardwright.DamageError, match="not a tar"):
        shardwright.open(without_manifest(shards))


def test_shards_of_another_packing_are_refused(shards: Path) -> None:
    other = shards.parent / "other"
    derived = small_store(shards.parent / "derived", SAMPLES).root
    shardwright.pack(
        derived_dir=derived, output_dir=other, shard_size=4, shuffle=True, seed=1, workers=1
    )
    order = [sample["__key__"] for sample in shardwright.open(other)]
    assert order != file_order(SAMPLES)
    for path in other.glob("bucket_*/*.tar"):
        shutil.copy(path, shards / path.relative_to(other))
    dataset = shardwright.open(shards)  # all sizes agree
    for position, (here, there) in enumerate(zip(file_order(SAMPLES), order, strict=True)):
        if here == there:
            continue
        with pytest.raises(shardwright.DamageError, match="or of another packing; copy the shards"):
            dataset[position]
        with pytest.raises(shardwright.DamageError, match="or of another packing"):
            dataset.fields("vae.npy").by_id(here)
    with pytest.raises(shardwright.DamageError, match="or of another packing"):
        list(dataset.batches(2))


def test_a_damaged_index_is_refused_when_the_folder_is_opened(shards: Path) -> None:
    path = shards / index.index_name("bucket_96x64/shard-000001.tar")
    overwrite(path, path.stat().st_size - 20, b"\xff")
    with pytest.raises(shardwright.DamageError, match=r"shard-000001\.idx: is damaged, or not"):
        shardwright.open(shards)


def test_an_index_of_other_shards_is_refused(shards: Path) -> None:
    one, two = ((shards / index.index_name(f"bucket_64x64/shard-00000{n}.tar")) for n in (0, 1))
    shutil.copy(one, two)
    with pytest.raises(shardwright.DamageError, match="not the one in the manifest"):
        shardwright.open(shards)


def test_missing_files_are_named(shards: Path, tmp_path: Path) -> None:
    (shards / index.index_name("bucket_64x64/shard-000000.tar")).unlink()
    with pytest.raises(shardwright.InputMissingError, match=r"shard-000000\.idx: no such file"):
        shardwright.open(shards)
    first_shard(shards).unlink()
    with pytest.raises(shardwright.InputMissingError, match=r"shard-000000\.tar: No such file"):
        shardwright.open(shards)
    with pytest.raises(shardwright.InputMissingError, match="nowhere: no such folder"):
        shardwright.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(shardwright.InputMissingError, match="empty: has no shards"):
        shardwright.open(tmp_path / "empty")


def test_a_folder_whose_packing_was_interrupted_is_refused(shards: Path) -> None:
    state = shards / ".shardwright"
    (state / "manifest.json").rename(state / "unfinished.json")
    with pytest.raises(shardwright.InputMissingError, match="run the same pack with --resume, or"):
        shardwright.open(shards)


@pytest.mark.parametrize("how", ["replaced", "written to", "cut", "removed"])
@pytest.mark.parametrize("read_before", [True, False])
def test_a_shard_that_changes_underneath_is_noticed(
    shards: Path, how: str, read_before: bool
) -> None:
    dataset = shardwright.open(shards)
    path = first_shard(shards)
    if read_before:
        assert_sample(dataset[0], "img0")
    if how == "replaced":
        shutil.copy(path, shards / "copy")
        os.replace(shards / "copy", path)
    elif how == "written to":
        with path.open("r+b") as file:
            file.write(b"?")
    elif how == "cut":
        os.truncate(path, 10)
    else:
        path.unlink()
    expected_error = (
        shardwright.InputMissingError if how == "removed" else shardwright.SourceChangedError
    )
    with pytest.raises(expected_error, match=r"bucket_64x64/shard-000000\.tar"):
        dataset[0]
    assert_sample(dataset[-1], file_order(SAMPLES)[-1])


def hashes(dataset: Dataset) -> list[str]:
    return [xxhash.xxh3_64_hexdigest(sample["vae.npy"]) for sample in dataset]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_in_use_can_go_to_another_process(made: Path, method: str) -> None:
    dataset = shardwright.open(made)
    here = hashes(dataset)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(hashes, (dataset,)) == here
    assert hashes(dataset) == here


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_relative_path_stays_good_in_another_working_folder(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.chdir(made.parent)
    dataset = shardwright.open(made.name)
    monkeypatch.chdir(tmp_path)
    assert_sample(dataset.by_id("img7"), "img7")
    assert_sample(pickle.loads(pickle.dumps(dataset))[0], "img0")
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(hashes, (dataset,)) == hashes(dataset)


def test_a_pickle_holds_no_shard(made: Path) -> None:
    dataset = shardwright.open(made)
    before = len(pickle.dumps(dataset))
    list(dataset)
    assert len(pickle.dumps(dataset)) <= before + 100


def test_more_shards_than_file_descriptors(tmp_path: Path) -> None:
    shards = packed(tmp_path, samples=50, shard_size=1)
    script = (
        "import resource, sys, shardwright\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "dataset = shardwright.open(sys.argv[1])\n"
        "print([dataset[n]['__key__'] for n in list(range(50)) * 2].count('img7'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(shards)], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_importing_shardwright_does_not_import_numpy() -> None:
    script = "import sys, shardwright; print({'numpy', 'torch', 'fsspec'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "set()\n"


@given(
    sizes=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 5000)), max_size=20),
    gap=st.integers(0, 2000),
)
@settings(deadline=None, max_examples=100)
def test_merged_pieces_cover_what_was_asked_and_no_wide_gap(
    sizes: list[tuple[int, int]], gap: int
) -> None:
    shard = Shard(
        path="a",
        bucket="64x64",
        samples=1,
        bytes=10**9,
        xxh3="",
        index_xxh3="",
        records_xxh3="",
    )
    pieces, position = [], 0
    for space, size in sizes:
        pieces.append(Piece(shard, position + space, size))
        position += space + size
    merged = list(merge(pieces, gap))
    assert all(
        sum(m.offset <= p.offset and p.offset + p.size <= m.offset + m.size for m in merged) == 1
        for p in pieces
    )
    between = [b.offset - a.offset - a.size for a, b in pairwise(merged)]
    assert all(space > gap for space in between)
    spaces = [space for space, _ in sizes[1:]]
    assert between == [space for space in spaces if space > gap]


def test_the_tar_headers_agree_with_the_index(made: Path) -> None:
    with LocalFile(first_shard(made)) as shard:
        entries = list(tarread.entries(shard))
    assert (entries[2].offset, entries[2].size) == place(made, "vae.npy")
