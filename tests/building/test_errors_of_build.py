"""What build says about shards that are there can be done with build, without any store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwright import ShardwrightError
from tests.building.builds import build
from tests.derive.pictures import make_images

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 6)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def refused(images: Path, output: Path, **options: Any) -> str:  # noqa: ANN401 - of build
    with pytest.raises(ShardwrightError) as caught:
        build(images, output, append=True, **options)
    return str(caught.value)


def test_a_missing_shard_is_made_again_by_a_build(images: Path, output: Path) -> None:
    build(images, output, shard_size=1)
    shard = output / "bucket_64x64/shard-000000.tar"
    shard.rename(images.parent / "kept.tar")
    assert refused(images, output) == (
        f"{shard}: is missing or incomplete; restore a copy, or make all shards again with "
        "--overwrite --shard-size 1, before you add to it"
    )
    (images.parent / "kept.tar").rename(shard)
    loose = output / "bucket_64x64/shard-000007.tar"
    loose.write_bytes(b"somebody's")
    assert refused(images, output) == (
        f"{loose}: is not in the manifest, so its samples are unknown; move it elsewhere, or make "
        "all shards again with --overwrite --shard-size 1, before you --append"
    )


def test_another_split_is_made_by_a_build_of_all(images: Path, output: Path) -> None:
    build(images, output, split="val=40%")
    assert refused(images, output, split="val=20%") == (
        f"{output}: was split with --split val=40%, so nothing was written: another split would "
        "move samples between its parts; give --split val=40%, or make all shards again with "
        "--overwrite and --split"
    )


def test_a_list_that_is_gone_is_named_with_what_build_can_do(images: Path, output: Path) -> None:
    banned = images.parent / "banned.txt"
    banned.write_text("img001\n")
    build(images, output, exclude_ids_file=banned)
    banned.unlink()
    assert refused(images, output) == (
        f"{banned}: --exclude-ids-file: no such file; restore it, or give another "
        "--exclude-ids-file, or --exclude-ids-file none (if there are shards, with --overwrite)"
    )


@pytest.mark.parametrize(
    "name", ["manifest.json", "index/bucket_64x64/shard-000000.idx", "index/*/shard-000000.jsonl"]
)
def test_a_damaged_file_of_the_shards_is_made_again_by_a_build(
    images: Path, output: Path, name: str
) -> None:
    build(images, output)
    (path, *_) = (output / ".shardwright").glob(name)
    path.write_bytes(path.read_bytes()[:-9])
    message = refused(images, output)
    assert "pack" not in message.replace(str(output), "")
    assert "make all shards again with --overwrite" in message
