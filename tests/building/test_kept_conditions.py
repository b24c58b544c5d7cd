"""What a build has excluded stays excluded when it is built again, until somebody drops it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from shardwright import UsageError, pack
from shardwright.progress import Lines
from tests.building.builds import Interrupting, build, write_recipe
from tests.derive.pictures import make_images, sketch
from tests.tars import all_ids

SIZES = ((96, 64), (64, 96), (64, 64))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 9, SIZES)


@pytest.fixture
def banned(tmp_path: Path) -> Path:
    (tmp_path / "bad.txt").write_text("img000\nimg004\n")
    return tmp_path / "bad.txt"


def built(images: Path, output: Path, **options: Any) -> str:  # noqa: ANN401
    """Build, and give what was reported meanwhile."""
    log = io.StringIO()
    build(images, output, **{"progress": Lines(log), **options})
    return log.getvalue()


CHOSEN = ["img003", "img006"]


def test_an_overwrite_keeps_what_excluded_images_and_prints_it(
    images: Path, output: Path, banned: Path
) -> None:
    given = {"where": ["width >= 96"], "exclude_ids_file": banned}
    built(images, output, shard_size=1, **given)
    assert all_ids(output) == CHOSEN
    log = built(images, output, overwrite=True)
    assert all_ids(output) == CHOSEN
    kept = f"--where 'width >= 96' --exclude-ids-file {banned}"
    drop = "(to drop it: --where none, --exclude-ids-file none)"
    assert f"{output}: kept from the last run: {kept} {drop}\n" in log
    assert f"{output}: not as in the last run: --shard-size was 1 and is 1000\n" in log
    built(images, output, overwrite=True, where="none", shard_size=1)
    assert sorted(all_ids(output)) == [f"img{n:03}" for n in (1, 2, 3, 5, 6, 7, 8)]
    built(images, output, overwrite=True, exclude_ids_file="none")
    assert len(all_ids(output)) == 9


def test_an_overwrite_keeps_the_split_until_it_is_dropped(images: Path, output: Path) -> None:
    built(images, output, split="val=50%")
    parts = {part: all_ids(output / part) for part in ("train", "val")}
    log = built(images, output, overwrite=True)
    assert {part: all_ids(output / part) for part in parts} == parts
    assert f"{output}: kept from the last run: --split val=50% (to drop it: --split none)\n" in log
    built(images, output, overwrite=True, split="none")
    assert len(all_ids(output)) == 9
    assert not [path for part in parts for path in output.glob(f"{part}/bucket_*")]


def test_an_interrupted_overwrite_goes_on_with_what_it_kept(
    images: Path, output: Path, banned: Path
) -> None:
    built(images, output, exclude_ids_file=banned)
    with pytest.raises(KeyboardInterrupt):
        built(images, output, overwrite=True, shard_size=1, progress=Interrupting(1))
    built(images, output, overwrite=True, shard_size=1)
    assert sorted(all_ids(output)) == [f"img{n:03}" for n in range(9) if n not in (0, 4)]


def test_a_list_that_only_a_store_can_find_is_asked_for(
    images: Path, output: Path, banned: Path, tmp_path: Path
) -> None:
    store = tmp_path / "derived"
    sketch(images, store, recipe=write_recipe(tmp_path))
    pack(store, output_dir=output, exclude_ids_file=banned)
    with pytest.raises(UsageError) as refused:
        build(images, output, overwrite=True)
    assert str(refused.value) == (
        f"{output}: was packed with --exclude-ids-file, and only its store knows where that is; "
        "give --exclude-ids-file again"
    )
    build(images, output, overwrite=True, exclude_ids_file=banned)
    assert len(all_ids(output)) == 7
