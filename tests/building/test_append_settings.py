"""What a build keeps of the one before it: the way of its ids, its captions and its conditions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shardwright import InputMissingError, UsageError, verify
from tests.building.builds import (
    Interrupting,
    build,
    interrupt,
    records,
    spoil,
    tars,
    write_recipe,
)
from tests.commands import run
from tests.derive.pictures import gradient, make_images, save

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 6)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize(("before", "now"), [("name", "path"), ("path", "name")])
def test_an_append_with_ids_made_in_another_way_is_refused(
    images: Path, output: Path, tmp_path: Path, before: str, now: str
) -> None:
    build(images, output, ids=before)
    shards = tars(output)
    make_images(images, 7)
    flags = (images, "-o", output, "--recipe", write_recipe(tmp_path), "--append", "--ids", now)
    done = run("build", *flags)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        f"{output}: its image ids were made with --ids {before}, now {now}, so nothing was written;"
        f" give --ids {before}, or build all of it again with --overwrite, or give another "
        "--output-dir"
    )
    assert run("build", *flags, "--dry-run").returncode == 1
    assert tars(output) == shards
    assert build(images, output, append=True).written_samples == 1, "it goes on as before"


def test_an_interrupted_build_goes_on_only_with_ids_made_in_the_same_way(
    images: Path, output: Path
) -> None:
    interrupt(images, output, 1, shard_size=1)
    with pytest.raises(UsageError, match=r"other settings \(--ids was name and is path\)"):
        build(images, output, shard_size=1, ids="path")


def captioned(folder: Path, numbers: range, text: str = "from the file") -> Path:
    """Write a captions file beside a folder of images, with a row for each number."""
    rows = "".join(f"img{number:03}.png,{text} {number}\n" for number in numbers)
    path = folder.parent / f"{folder.name}.csv"
    path.write_text(f"file_name,caption\n{rows}")
    return path


@pytest.mark.parametrize("split", [None, "val=40%"])
def test_an_append_reads_the_captions_file_of_the_shards_and_says_so(
    images: Path, output: Path, tmp_path: Path, split: str | None
) -> None:
    captions = captioned(images, range(9))
    build(images, output, captions=captions, split=split)
    make_images(images, 7)
    folders = [output / part for part in ("train", "val")] if split else [output]
    flags = ("--recipe", write_recipe(tmp_path), "--append")
    for moved in (False, True):
        done = run("build", "images", "-o", "out", *flags, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "captions: images.csv, as in the last build\n" in done.stderr
        if not moved:  # the shards alone, then back
            elsewhere = output.rename(tmp_path / "elsewhere")
            make_images(images, 8)
            done = run("build", images, "-o", elsewhere, *flags, cwd=tmp_path)
            assert "captions: images.csv, as in the last build\n" in done.stderr
            elsewhere.rename(output)
            make_images(images, 9)
    found = {image_id: r["caption"] for each in folders for image_id, r in records(each).items()}
    assert found == {f"img{number:03}": f"from the file {number}" for number in range(9)}


def test_a_captions_file_is_dropped_by_name_and_missed_if_it_is_gone(
    images: Path, output: Path
) -> None:
    captions = captioned(images, range(9))
    build(images, output, captions=captions)
    make_images(images, 7)
    captions.rename(captions.with_suffix(".old"))
    before = tars(output)
    for dry_run in (True, False):
        with pytest.raises(InputMissingError) as caught:
            build(images, output, append=True, dry_run=dry_run)
        assert str(caught.value) == (
            f"{captions}: the captions file is gone; give --captions FILE, or --captions none to "
            "forget it"
        )
    assert tars(output) == before
    build(images, output, append=True, captions="none")
    assert records(output)["img006"]["caption"] == "a soft gradient, number 6"
    make_images(images, 8)
    build(images, output, append=True)
    assert records(output)["img007"]["caption"] == "a soft gradient, number 7"


@pytest.mark.parametrize("split", [None, "val=40%"])
@pytest.mark.parametrize("fails", [False, True], ids=["nothing new", "all that is new fails"])
def test_the_captions_file_given_last_holds_although_nothing_was_built(
    images: Path, output: Path, tmp_path: Path, split: str | None, fails: bool
) -> None:
    captions = captioned(images, range(9))
    build(images, output, captions=captions, split=split)
    captions.unlink()
    if fails:  # once it is decoded
        make_images(images, 7)
        spoil(images, 6)
        (images / "img007.txt").write_text("a caption")
    flags = ("build", images, "-o", output, "--recipe", write_recipe(tmp_path), "--append")
    assert "the captions file is gone" in run(*flags).stderr
    done = run(*flags, "--captions", "none", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "the captions file is gone" in run(*flags).stderr, "a dry run changes nothing"
    for given in (["--captions", "none"], []):
        done = run(*flags, *given)
        assert done.returncode == (3 if fails else 0), done.stderr
        assert "captions:" not in done.stderr
    other = captioned(images.parent / "other", range(9), "from another file")
    for given in (["--captions", str(other)], []):
        done = run(*flags, *given)
        assert done.returncode == (3 if fails else 0), done.stderr
    assert "other.csv, as in the last build\n" in done.stderr
    folders = [output / part for part in ("train", "val")] if split else [output]
    before = [(each / ".shardwright/manifest.json").read_bytes() for each in folders]
    assert not verify(output, read_data=True, workers=1).damaged
    for suffix in (".jpg", ".png"):
        (images / "img006").with_suffix(suffix).unlink(missing_ok=True)
    build(images, output, append=True)
    assert [(each / ".shardwright/manifest.json").read_bytes() for each in folders] == before
    make_images(images, 9)
    build(images, output, append=True)
    found = {image_id: r["caption"] for each in folders for image_id, r in records(each).items()}
    assert found["img008"] == "from another file 8"
    assert found["img005"] == "from the file 5"


def test_each_folder_of_images_has_its_captions_file(output: Path, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("one", "two", "three")}
    for number, folder in enumerate(folders.values()):
        make_images(folder, 2 * number + 2)
        for old in range(2 * number):
            (folder / f"img{old:03}.png").unlink()
    files = {name: captioned(folders[name], range(20), name) for name in ("one", "two")}
    build(folders["one"], output, captions=files["one"])
    build(folders["two"], output, captions=files["two"], append=True)
    progress = Interrupting()
    build(folders["three"], output, append=True, progress=progress)
    assert (
        f"captions: none given; the last build read {files['one']} for {folders['one']}, and "
        f"{files['two']} for {folders['two']}"
    ) in progress.said
    save(folders["one"] / "img010.png", gradient(96, 64, 10))
    save(folders["two"] / "img011.png", gradient(96, 64, 11))
    with pytest.raises(UsageError) as caught:
        build([folders["one"], folders["two"]], output, append=True)
    assert str(caught.value) == (
        f"{output}: was built with --captions {files['one']} for {folders['one']}, and "
        f"{files['two']} for {folders['two']}; give --captions FILE or --captions none, or build "
        "each folder alone"
    )
    build(folders["two"], output, append=True)
    build(folders["one"], output, append=True)
    texts = {image_id: record["caption"] for image_id, record in records(output).items()}
    assert texts == {
        **{f"img{number:03}": f"one {number}" for number in (0, 1, 10)},
        **{f"img{number:03}": f"two {number}" for number in (2, 3, 11)},
        **{f"img{number:03}": f"a soft gradient, number {number}" for number in (4, 5)},
    }


def test_a_captions_file_is_also_that_of_folders_below_and_above_its_own(
    output: Path, tmp_path: Path
) -> None:
    above, below = tmp_path / "all", tmp_path / "all/some"
    make_images(below, 2)
    rows = "".join(f"all/some/img{number:03}.png,for all {number}\n" for number in range(9))
    for_all, for_some = tmp_path / "all.csv", captioned(below, range(9), "for some")
    for_all.write_text(f"file_name,caption\n{rows}")
    read: list[str] = []
    for number, (images, captions) in enumerate(
        [(above, for_all), (below, None), (below, for_some), (below, None), (above, None)]
    ):
        make_images(below, number + 2)
        progress = Interrupting()
        again = {"captions": captions, "append": number > 0, "progress": progress}
        build(images, output, **again)
        read += [line for line in progress.said if line.startswith("captions:")]
    last = "as in the last build"
    assert read == [f"captions: {path}, {last}" for path in (for_all, for_some, for_all)]
    texts = [record["caption"] for _, record in sorted(records(output).items())]
    assert texts == ["for all 0", "for all 1", "for all 2", "for some 3", "for some 4", "for all 5"]


def test_captions_files_of_two_folders_below_are_named_and_none_is_read(
    output: Path, tmp_path: Path
) -> None:
    folders, files = [tmp_path / "all" / name for name in ("one", "two")], []
    for number, folder in enumerate(folders):
        save(folder / f"img{number:03}.png", gradient(96, 64, number))
        files.append(captioned(folder, range(9)))
        build(folder, output, captions=files[-1], append=number > 0)
    with pytest.raises(UsageError) as caught:
        build(tmp_path / "all", output, append=True)
    assert str(caught.value).startswith(
        f"{output}: was built with --captions {files[0]} for {folders[0]}, and {files[1]} for "
        f"{folders[1]}; give --captions FILE"
    )


def test_an_overwrite_reads_the_captions_file_of_the_shards(images: Path, output: Path) -> None:
    build(images, output, captions=captioned(images, range(6)))
    build(images, output, overwrite=True)
    assert {r["caption"][:4] for r in records(output).values()} == {"from"}
    build(images, output, overwrite=True, captions="none")
    assert {r["caption"][:4] for r in records(output).values()} == {"a so"}
    build(images, output, overwrite=True)
    assert {r["caption"][:4] for r in records(output).values()} == {"a so"}


def test_ids_of_the_captions_file_go_on_without_the_flag(images: Path, output: Path) -> None:
    captions = images.parent / "ids.csv"
    rows = "".join(f"img{number:03}.png,id{number},text {number}\n" for number in range(9))
    captions.write_text(f"file_name,image_id,caption\n{rows}")
    with pytest.raises(UsageError, match="--ids captions without --captions"):
        build(images, output, ids="captions")
    build(images, output, ids="captions", captions=captions)
    make_images(images, 7)
    summary = build(images, output, append=True)
    assert (summary.already_there, summary.written_samples) == (6, 1)
    assert records(output)["id6"]["caption"] == "text 6"


def test_an_interrupted_append_goes_on_with_the_captions_file_it_had(
    images: Path, output: Path
) -> None:
    build(images, output, captions=captioned(images, range(9)), shard_size=1)
    make_images(images, 9)
    interrupt(images, output, 1, append=True, shard_size=1)
    summary = build(images, output, append=True, shard_size=1)
    assert (summary.written_samples, summary.kept_shards) == (3, 1)
    assert records(output)["img008"]["caption"] == "from the file 8"


def test_one_build_with_captions_leaves_the_same_files_in_every_folder(
    images: Path, tmp_path: Path
) -> None:
    captioned(images, range(9))
    left = []
    for name in ("here", "elsewhere"):
        project = tmp_path / name
        shutil.copytree(images, project / "images")
        shutil.copy2(tmp_path / "images.csv", project)
        flags = ("--encoders", "sketch", "--captions", "images.csv")
        done = run("build", "images", "-o", "shards", *flags, cwd=project)
        assert done.returncode == 0, done.stderr
        left.append(sorted(path.relative_to(project) for path in project.rglob("*.*")))
    assert left[0] == left[1]
