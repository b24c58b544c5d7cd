"""Builds at a URL equal local ones, byte for byte, and say clearly what cannot be done there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import (
    BuildSummary,
    InputMissingError,
    LockedError,
    Progress,
    ShardExistsError,
    SourceChangedError,
    StorageError,
    UsageError,
)
from shardwright.building import state
from shardwright.building.commits import DirectCommits
from shardwright.cli.main import main
from shardwright.shards.format import manifest
from shardwright.storage import files, urls
from shardwright.storage.urls import Url
from tests.building.builds import Interrupting, spoil
from tests.derive.pictures import gradient, make_images, save
from tests.durability.builds import SIZES, make_recipe
from tests.remote import assert_same, held, local
from tests.servers import new_bucket, use_s3

SQUARE = (64, 64)  # large enough that a cut is found only when it is decoded


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 10, SIZES)


def build(images: Path, output: Path | Url, **options: Any) -> BuildSummary:  # noqa: ANN401
    """Build small shards of small images."""
    recipe = make_recipe(images.parent, "dinov3", "t5")
    defaults = {"encoders": "sketch", "device": "cpu", "shard_size": 2, "recipe": recipe}
    return shardwright.build(images, output_dir=str(output), **{**defaults, **options})


def assert_ok(folder: Url) -> None:
    report = shardwright.verify(str(folder), read_data=True)
    assert report.checked
    assert not report.findings


@pytest.mark.parametrize("server", ["moto", "ministack"])
@pytest.mark.parametrize(
    "options",
    [
        {"sha256": True},
        {"split": "val=40%", "shuffle": True, "seed": 5},
        {"limit": 4, "shuffle": True},
        {"where": ['caption != ""']},
        {"device": "cpu:2"},
    ],
    ids=lambda options: " ".join(options),
)
def test_a_build_at_a_url_has_the_bytes_of_a_local_one(
    server: str,
    options: dict[str, Any],
    images: Path,
    output: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_s3(monkeypatch, url := request.getfixturevalue(server))
    folder = new_bucket(url) / "my shards"
    spoil(images, 2, SQUARE)
    (images / "img005.png").write_bytes(b"broken")
    here, there = build(images, output, **options), build(images, folder, **options)
    assert_same(folder, output)
    assert (there.written_samples, there.left_out) == (here.written_samples, here.left_out)
    assert_ok(folder)
    urls._store.cache_clear()


def test_limit_takes_reserves_in_place_of_images_that_fail(
    bucket: Url, images: Path, output: Path
) -> None:
    for number in (0, 1, 4):
        spoil(images, number, (64 * (number % 2 + 1), 64))
    for folder in (output, bucket / "shards"):
        assert build(images, folder, limit=6, shard_size=3).written_samples == 6
    assert_same(bucket / "shards", output)


def test_append_goes_on_after_a_gap_that_failed_images_left(
    bucket: Url, images: Path, tmp_path: Path
) -> None:
    folder, sized = bucket / "shards", {"shard_size": 1}
    for number in (2, 8):  # the second shard of a bucket, and the last one
        spoil(images, number, SQUARE)
    build(images, folder, **sized)
    shards = [name for name in held(folder) if name.endswith(".tar")]
    assert shards == [
        *(f"bucket_16x16/shard-{number:06}.tar" for number in (0, 2, 3)),
        *(f"bucket_32x16/shard-{number:06}.tar" for number in range(5)),
    ]
    assert_ok(folder)
    for number in (2, 8, 10):
        (images / f"img{number:03}.jpg").unlink(missing_ok=True)
        save(images / f"img{number:03}.png", gradient(16, 16, seed=number))
    (images / "img010.txt").write_text("new")
    summary = build(images, folder, append=True, **sized)
    assert (summary.written_samples, summary.already_there) == (3, 8)
    shards = [name for name in held(folder) if name.endswith(".tar")]
    assert [name[-10:-4] for name in shards if "16x16" in name] == [
        *("000000", "000002", "000003", "000004", "000005", "000006")
    ]
    assert_ok(folder)
    ids = sorted(sample["json"]["image_id"] for sample in shardwright.open(str(folder)))
    assert ids == [f"img{number:03}" for number in range(11)]


@pytest.mark.parametrize("far", [False, True])
def test_an_append_at_a_url_reads_the_captions_file_of_the_last_build(
    bucket: Url, images: Path, far: bool
) -> None:
    rows = "".join(f"img{number:03}.png,from the file {number}\n" for number in range(20))
    data = f"file_name,caption\n{rows}".encode()
    captions = bucket / "captions.csv" if far else images.parent / "captions.csv"
    files.write(captions, data)
    folder, progress = bucket / "shards", Interrupting()
    build(images, folder, captions=str(captions))
    make_images(images, 12, SIZES)
    build(images, folder, append=True, progress=progress)
    assert f"captions: {captions}, as in the last build" in progress.said
    found = {sample["json"]["caption"] for sample in shardwright.open(str(folder))}
    assert found == {f"from the file {number}" for number in range(12)}
    files.remove(captions)
    with pytest.raises(InputMissingError, match="the captions file is gone"):
        build(images, folder, append=True)
    for given in ("none", None):
        assert build(images, folder, append=True, captions=given).already_there == 12
    assert_ok(folder)


def test_what_is_fixed_after_an_append_is_added_by_the_next_and_no_plan_of_an_append_stays(
    bucket: Url, images: Path
) -> None:
    folder, broken = bucket / "shards", images / "img010.png"
    build(images, folder)
    broken.write_bytes(b"broken")
    broken.with_suffix(".txt").write_text("a caption")
    save(images / "img011.png", gradient(*SIZES[0], 11))
    (images / "img011.txt").write_text("a caption")
    first = build(images, folder, append=True)
    assert (first.written_samples, first.already_there, first.failed) == (1, 10, 1)
    again = build(images, folder, append=True)
    assert (again.written_samples, again.already_there, again.failed) == (0, 11, 1)
    save(broken, gradient(*SIZES[0], 10))
    fixed = build(images, folder, append=True)
    assert (fixed.written_samples, fixed.already_there, fixed.failed) == (1, 11, 0)
    assert_ok(folder)
    plans = {name.rpartition("/")[0] for name in held(folder) if "/build/" in name}
    assert len(plans) == 1, "that of the first build"


def test_append_to_parts_equals_a_local_one(bucket: Url, images: Path, output: Path) -> None:
    for folder in (output, bucket / "shards"):
        build(images, folder, split="val=40%", sha256=True)
    for number in range(10, 16):
        save(images / f"img{number:03}.png", gradient(*SIZES[number % 2], seed=number))
        (images / f"img{number:03}.txt").write_text(f"number {number}")
    for folder in (output, bucket / "shards"):
        assert build(images, folder, append=True).written_samples == 6
    assert_same(bucket / "shards", output)


def test_a_build_that_was_killed_between_the_manifests_of_two_parts_is_finished(
    bucket: Url, images: Path, output: Path
) -> None:
    save_manifest, saved = manifest.save_manifest, list[object]()

    def saving(folder: Url, *given: Any) -> None:  # noqa: ANN401 - of save_manifest
        if saved:
            raise KeyboardInterrupt
        saved.append(folder)
        save_manifest(folder, *given)

    build(images, output, split="val=40%")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(manifest, "save_manifest", saving)
        with pytest.raises(KeyboardInterrupt):
            build(images, bucket / "shards", split="val=40%")
    build(images, bucket / "shards", split="val=40%")
    assert_same(bucket / "shards", output)


def test_a_build_from_shards_goes_to_a_url(bucket: Url, images: Path, tmp_path: Path) -> None:
    first, here, there = tmp_path / "first", tmp_path / "here", bucket / "there"
    build(images, first)
    for folder in (here, there):
        shardwright.build(
            from_=str(first),
            components=["t5"],
            recipe=make_recipe(tmp_path, "dinov3", "t5"),
            encoders="sketch",
            output_dir=str(folder),
            device="cpu",
        )
    wanted, state = local(here), ".shardwright/manifest.json"
    # Nothing is relative to a URL, so its manifest has the complete path of where it came from, and
    # its plan another digest.
    found = json.loads(there_data := (there / state).read_bytes())
    assert found["runs"][-1]["build"]["from"] == str(first)
    (ours,) = (name for name in wanted if name.startswith(".shardwright/built/"))
    theirs = f".shardwright/built/{found['runs'][-1]['plan']}.jsonl"
    wanted[theirs] = wanted.pop(ours)
    assert_same(there, wanted | {state: there_data})
    assert_ok(there)


def test_a_second_run_has_nothing_to_build(
    bucket: Url, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bucket / "shards"
    build(images, folder, limit=5)
    before = held(folder)
    summary = build(images, folder, limit=5)
    assert (summary.written_samples, summary.already_there) == (0, 5)
    assert held(folder) == before


def test_another_plan_is_refused_with_what_differs(bucket: Url, images: Path) -> None:
    folder = bucket / "shards"
    with pytest.raises(KeyboardInterrupt) as caught:
        build(images, folder, progress=Interrupting(5), batch_size=1)
    assert "finished; run the same command to continue" in caught.value.__notes__[0]
    before = held(folder)
    with pytest.raises(LockedError) as refused:  # nothing tells whether it is running
        build(images, folder, shard_size=3)
    assert str(refused.value) == (
        f"{folder}: holds an unfinished build with other settings (--shard-size was 2 and is 3); "
        "wait until it has ended, run it as before, or give another --output-dir"
    )
    assert held(folder) == before
    build(images, folder)
    with pytest.raises(ShardExistsError) as exists:
        build(images, folder, shard_size=3)
    assert str(exists.value) == (
        f"{folder}/bucket_16x16/shard-000000.tar: already exists, so nothing was written; "
        "give --append to add what is new, or another --output-dir"
    )


def test_overwrite_is_refused(bucket: Url, images: Path) -> None:
    with pytest.raises(UsageError, match="is a URL, where shards are added and never replaced"):
        build(images, bucket / "shards", overwrite=True)
    assert not held(bucket)


def test_a_dry_run_writes_nothing(
    bucket: Url, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bucket / "shards"
    words = ["build", str(images), "--encoders", "sketch", "--device", "cpu", "--dry-run", "--json"]
    words += ["--recipe", str(make_recipe(tmp_path, "dinov3", "t5")), "--output-dir", str(folder)]
    assert main([*words, "--shard-size", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["written_shards"], held(bucket)) == (6, {})
    build(images, folder)
    assert main([*words, "--shard-size", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["already_there"] == 10
    assert main([*words, "--shard-size", "3"]) == 1
    with pytest.raises(KeyboardInterrupt):
        build(images, bucket / "other", progress=Interrupting(5), batch_size=1)
    before = dict(bucket.walk())
    words[words.index(str(folder))] = str(bucket / "other")
    assert main([*words, "--shard-size", "2"]) == 0
    assert dict(bucket.walk()) == before


class _Looking(Progress):
    """Looks at the note of the unfinished run while images are encoded."""

    def __init__(self, folder: Url) -> None:
        self.folder, self.seen = folder, set[str]()
        self.current = ""

    def phase(self, name: str, total: int, unit: str) -> None:
        self.current = name

    def advance(self, count: int) -> None:
        if self.current == "build":
            note = manifest.load_unfinished(self.folder)
            assert note is not None
            assert note.is_build
            assert manifest.load_manifest(self.folder) is None
            self.seen.add(note.plan)


def test_a_note_says_so_while_it_runs(bucket: Url, images: Path) -> None:
    looking = _Looking(bucket / "shards")
    build(images, bucket / "shards", progress=looking)
    done = manifest.load_manifest(bucket / "shards")
    assert done is not None
    assert looking.seen == {done.runs[-1].plan}
    assert manifest.load_unfinished(bucket / "shards") is None


def test_a_store_that_ignores_conditions_is_refused(
    rclone: str, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_s3(monkeypatch, rclone)
    folder = new_bucket(rclone) / "shards"
    with pytest.raises(StorageError) as refused:
        build(images, folder)
    assert str(refused.value) == (
        f"{folder}: this store ignores conditions, so two runs at once could replace each other's "
        "files; use another store, or write to a folder and copy it there"
    )
    assert not held(folder)
    urls._store.cache_clear()


class _KilledError(Exception):
    """The process is gone."""


def killed(images: Path, folder: Url, where: str, **options: Any) -> None:  # noqa: ANN401
    """Build, and die when a function of the manifest is called."""

    def dying(*_: object, **__: object) -> None:
        raise _KilledError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(manifest, where, dying)
        with pytest.raises(_KilledError):
            build(images, folder, **options)


@pytest.mark.parametrize("all_fail", [False, True])
def test_nothing_stays_of_a_shard_whose_images_fail_after_its_worker_has_died(
    bucket: Url, images: Path, all_fail: bool
) -> None:
    def dying(*_: object) -> None:
        raise _KilledError

    folder, path = bucket / "shards", "bucket_16x16/shard-000000"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DirectCommits, "_write", dying)
        with pytest.raises(_KilledError):
            build(images, folder)
    assert len([name for name in held(folder) if path in name]) == 3
    for image in images.glob("*.png"):
        if all_fail or image.stem in json.loads((folder / IDS).read_bytes().split(b"\n")[0])["ids"]:
            image.write_bytes(b"broken")
    build(images, folder)
    assert not [name for name in held(folder) if path in name]
    if not all_fail:
        assert_ok(folder)


IDS = ".shardwright/index/bucket_16x16/shard-000000.idx"


@pytest.mark.parametrize("kind", ["tar", "idx", "commit"])
def test_what_is_lost_before_the_manifest_is_written_is_made_again(
    bucket: Url, images: Path, output: Path, kind: str
) -> None:
    folder = bucket / "shards"
    build(images, output)
    killed(images, folder, "save_manifest")
    (plan,) = {name.split("/")[3] for name in held(bucket) if "/build/" in name}
    lost = {
        "tar": "bucket_16x16/shard-000000.tar",
        "idx": ".shardwright/index/bucket_16x16/shard-000000.idx",
        "commit": f".shardwright/build/{plan}/commits/000000.json",
    }
    assert (folder / lost[kind]).is_file()
    files.remove(folder / lost[kind])
    build(images, folder)
    assert_same(folder, output)
    assert_ok(folder)


def test_a_finished_build_stays_as_it_is_if_a_run_that_was_too_late_has_left_its_note(
    bucket: Url, images: Path
) -> None:
    folder, noted = bucket / "shards", list[bytes]()
    build(images, folder, progress=_Noting(folder, noted))
    (folder / NOTE).write(noted[0])
    before = {name: each.etag for name, each in folder.walk() if name != NOTE}
    times = {name: each.st_mtime_ns for name, each in folder.walk()}
    with pytest.raises(LockedError, match="or has finished it"):
        build(images, folder)
    assert build(images, folder).already_there == 10
    found = dict(folder.walk())
    assert {name: each.etag for name, each in found.items()} == before
    shards = [name for name in found if name.endswith((".tar", ".idx"))]
    assert {name: found[name].st_mtime_ns for name in shards} == {n: times[n] for n in shards}


NOTE = ".shardwright/unfinished.json"


class _Noting(Progress):
    """Keeps the note of the unfinished run."""

    def __init__(self, folder: Url, noted: list[bytes]) -> None:
        self.folder, self.noted = folder, noted

    def advance(self, count: int) -> None:
        if not self.noted and (self.folder / NOTE).is_file():
            self.noted.append((self.folder / NOTE).read_bytes())


def test_a_run_that_looks_after_another_has_finished_leaves_no_note(
    bucket: Url, images: Path
) -> None:
    folder, split = bucket / "shards", "test=60%,val=40%"
    save_plan = state.save_plan

    def late(*given: Any) -> None:  # noqa: ANN401 - of save_plan
        patched.undo()
        build(images, folder, split=split)
        save_plan(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state, "save_plan", late)
        with pytest.raises(SourceChangedError, match="in the meantime"):
            build(images, folder, split=split)
    assert not [name for name in held(folder) if name.endswith("unfinished.json")]
    assert build(images, folder, split=split).already_there == 10
