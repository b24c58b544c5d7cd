"""Bad input of a build: counted with a reason, or refused with the fix; never written in part."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

import shardwright
from shardwright import InputMissingError, TooManyFailuresError, UsageError, derive, verify
from shardwright.shards.format import manifest
from tests.building.builds import (
    BUCKETS,
    Interrupting,
    build,
    ledger,
    reasons,
    records,
    spoil,
    write_recipe,
)
from tests.building.tarsets import Member, members_of, picture, special, write_set, write_tar
from tests.commands import run
from tests.derive.pictures import gradient, make_bomb, make_images, save
from tests.faults import contents
from tests.tars import shards

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 3)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def caption(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.txt").write_text("a caption")


def test_images_that_cannot_be_used_are_left_out_each_with_its_reason(
    images: Path, output: Path, tmp_path: Path
) -> None:
    (images / "text.jpg").write_text("no picture")
    (images / "empty.png").touch()
    make_bomb(images / "bomb.png", 60_000, 60_000)
    (images / "gone.png").symlink_to("nowhere.png")
    (images / "tiny.psd").write_bytes(b"8BPS")
    save(tmp_path / "outside.png", gradient(96, 64, 5))
    (images / "link.png").symlink_to(tmp_path / "outside.png")
    save(images / "mute.png", gradient(96, 64, 6))
    save(images / "latin.png", gradient(96, 64, 7))
    caption(images, "text", "empty", "bomb", "gone", "tiny", "link")
    (images / "latin.txt").write_bytes(b"K\xe4fer")
    os.mkfifo(images / "pipe.png")
    caption(images, "pipe")
    spoil(images, 1)
    progress = Interrupting()
    (tmp_path / "other").mkdir()
    (images / "folder").symlink_to(tmp_path / "other")
    summary = build(images, output, progress=progress)
    found = reasons(output)
    assert found.pop("pipe.png")
    assert found == {
        "text.jpg": "broken_image",
        "empty.png": "broken_image",
        "bomb.png": "too_large",
        "gone.png": "unreadable",
        "tiny.psd": "format_not_readable",
        "mute.png": "no_caption",
        "latin.png": "caption_not_utf8",
        "img001.jpg": "broken_image",
    }
    assert sorted(records(output)) == ["img000", "img002", "link"], "links to files are followed"
    assert summary.failed == 9
    assert f"warning: {images}/folder: skipped, because it is a link to a folder" in progress.said
    for line in ledger(output):
        assert line["detail"]
        assert line["image_path"].startswith(str(images))


def test_a_folder_that_cannot_be_read_is_counted(
    images: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (images / "closed").mkdir()
    real = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    build(images, output)
    assert reasons(output) == {"closed": "unreadable_folder"}


def test_images_that_the_recipe_leaves_out_are_no_failures(images: Path, output: Path) -> None:
    recipe = write_recipe(images.parent, name="least.toml")
    recipe.write_text(recipe.read_text().replace("[images]\n", "[images]\nmin_side = 70\n"))
    summary = build(images, output, recipe=recipe)
    assert (summary.written_samples, summary.failed) == (1, 0)
    assert sum(count.count for count in summary.left_out.values()) == 2
    assert all(line["by_recipe"] for line in ledger(output))


# Tars.


def test_a_tar_that_ends_in_the_middle_gives_what_is_complete(tmp_path: Path, output: Path) -> None:
    tar = write_set(tmp_path / "in/a.tar", [f"k{n}" for n in range(4)])
    data = tar.read_bytes()
    tar.write_bytes(data[: data.index(b"k3.jpg") + 700])
    summary = build(tar, output)
    assert sorted(records(output)) == ["k0", "k1"]
    assert reasons(output) == {"k2": "sample_cut", "a.tar": "truncated_tar"}
    assert summary.inputs == 4
    assert verify(output, read_data=True, workers=1).damaged == 0


def test_samples_of_tars_that_do_not_hold_together_are_left_out(
    tmp_path: Path, output: Path
) -> None:
    link: list[Member] = [special("link.jpg", tarfile.SYMTYPE), ("link.txt", b"x")]
    write_tar(
        tmp_path / "in/a.tar",
        [
            *members_of("good"),
            *[("mute.jpg", picture()), ("text.txt", b"alone")],
            *[("apart.jpg", picture()), ("other.jpg", picture()), ("apart.txt", b"x")],
            *[("twice.jpg", picture()), ("twice.jpg", picture(seed=1)), ("twice.txt", b"x")],
            *[("two.jpg", picture()), ("two.png", picture()), ("two.txt", b"x")],
            *link,
            *[("list.jpg", picture()), ("list.txt", b"x"), ("list.json", b"[1]")],
            *[("cut.jpg", picture()), ("cut.txt", b"x"), ("cut.json", b'{"a":')],
            *[("odd.jpg", picture()), ("odd.json", b'{"caption": 5}')],
        ],
    )
    (tmp_path / "in/b.tar").write_bytes(b"no tar" * 1000)
    (tmp_path / "in/c.tar").touch()
    build(tmp_path / "in", output)
    found = reasons(output)
    assert sorted(records(output)) == ["good"]
    assert found["c.tar"] in ("no_samples", "truncated_tar", "not_a_tar")
    assert {**found, "c.tar": ""} == {
        "mute.jpg": "no_caption",
        "text": "no_image",
        "apart": "key_apart",
        "other.jpg": "no_caption",
        "twice": "repeated_member",
        "two": "several_images",
        "link": "not_a_file",
        "list.jpg": "not_an_object",
        "cut.jpg": "not_json",
        "odd.jpg": "no_caption",
        "b.tar": "not_a_tar",
        "c.tar": "",
    }


def test_one_id_in_a_folder_and_in_tars_is_used_once_or_not_at_all(
    images: Path, output: Path
) -> None:
    write_tar(images / "a.tar", [*members_of("img001"), *members_of("k")])
    write_tar(images / "b.tar", members_of("k"))
    summary = build(images, output)
    assert {n: c.count for n, c in summary.left_out.items()} == {"duplicate_id": 4}
    assert sorted(records(output)) == ["img000", "img002"]
    assert "use --ids path to tell them apart" in ledger(output)[0]["detail"]
    build(images, output.parent / "paths", ids="path")
    assert len(records(output.parent / "paths")) == 6


def test_hostile_keys_stay_inside_the_output_folder(tmp_path: Path, output: Path) -> None:
    keys = ["../x", "/abs/y", "a/b", "ключ", "日本", "-rf", "a b", "...", "k" * 99, "l" * 300]
    write_tar(tmp_path / "in/a.tar", [member for key in keys for member in members_of(key)])
    before = sorted(tmp_path.rglob("*"))
    summary = build(tmp_path / "in", output)
    new = [path for path in tmp_path.rglob("*") if path not in before]
    assert all(path.is_relative_to(output) or path.name == "small.toml" for path in new)
    assert {path.parent.name for path in shards(output)} <= {f"bucket_{name}" for name in BUCKETS}
    assert summary.written_samples >= 7
    found = records(output)
    assert "a%2Fb" in found
    assert {"ключ", "日本", "a b"} <= set(found)
    assert found["ключ"]["url"] == "https://x.org/ключ.jpg"
    assert verify(output, read_data=True, workers=1).damaged == 0
    dataset = shardwright.open(output)
    assert {dataset[n]["json"]["image_id"] for n in range(len(dataset))} == set(found)


# Refused.


def test_no_images_are_refused_and_nothing_is_written(tmp_path: Path, output: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, what in (("empty", "no images and no tars"), ("gone", "no such file or folder")):
        with pytest.raises(InputMissingError, match=what):
            build(tmp_path / name, output)
    assert not output.exists()


def test_an_output_folder_among_the_inputs_is_refused(images: Path) -> None:
    for output in (images, images / "shards"):
        with pytest.raises(UsageError) as caught:
            build(images, output)
        assert str(caught.value) == (
            f"{output}: is inside {images}, which is an input; give another --output-dir"
        )
    assert not (images / "shards").exists()


def test_a_store_as_output_folder_is_refused(images: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    derive(images, derived_dir=store, recipe=write_recipe(tmp_path), encoders="sketch")
    before = contents(store)
    with pytest.raises(UsageError, match="is a store; give another --output-dir"):
        build(images, store)
    assert contents(store) == before


def test_captions_and_lists_that_are_missing_are_refused(images: Path, output: Path) -> None:
    with pytest.raises(InputMissingError, match=r"none\.csv: no such file"):
        build(images, output, captions=images / "none.csv")
    with pytest.raises(InputMissingError, match=r"none\.txt: --ids-file: no such file"):
        build(images, output, ids_file=images / "none.txt")
    assert not shards(output)


def test_if_all_images_fail_there_is_no_shard_and_no_manifest(tmp_path: Path, output: Path) -> None:
    images = make_images(tmp_path / "images", 3)
    for number in range(3):
        spoil(images, number)
    (tmp_path / "never").mkdir()
    (tmp_path / "never/a.jpg").write_text("no picture")
    for folder, count in ((images, 3), (tmp_path / "never", 1)):
        summary = build(folder, output)
        assert (summary.written_samples, summary.failed) == (0, count)
        assert not shards(output)
        assert manifest.load_manifest(output) is None
        assert len(ledger(output)) == count


def test_a_hundred_failures_in_a_row_stop_the_build(tmp_path: Path, output: Path) -> None:
    images = make_images(tmp_path / "images", 1, ((96, 64),))
    broken = spoil(images, 0).read_bytes()
    for number in range(130):
        (images / f"b{number:03}.jpg").write_bytes(broken)
    caption(images, *(f"b{number:03}" for number in range(130)))
    with pytest.raises(TooManyFailuresError, match="as with 100 images in a row"):
        build(images, output)
    assert manifest.load_unfinished(output) is not None


def test_members_of_tars_that_have_no_key_are_counted_and_one_is_named(tmp_path: Path) -> None:
    first = write_tar(tmp_path / "tars/a.tar", [("README", b"hello"), *members_of("k")])
    write_tar(tmp_path / "tars/b.tar", [*members_of("l"), (".jpg", picture()), ("Makefile", b"")])
    flags = ("--recipe", write_recipe(tmp_path), "--encoders", "sketch")
    done = run("build", tmp_path / "tars", *flags, "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    said = "tar members skipped: not named like KEY.jpg, for example "
    assert f"3 {said}{first}/README" in done.stderr
    assert sorted(records(tmp_path / "out")) == ["k", "l"]
    one = run("build", first, *flags, "--output-dir", tmp_path / "one")
    assert f"1 {said.replace('members', 'member')}{first}/README" in one.stderr
