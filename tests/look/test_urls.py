"""Shards of pictures at a URL: what ``look`` shows of them, and what ``verify`` compares."""

from __future__ import annotations

from pathlib import Path

import shardwright
from shardwright.storage.urls import Url
from tests.look.pictures import Folders, previews
from tests.shards.test_url_folders import upload


def test_look_shows_at_a_url_what_the_folder_has(at: Folders, bucket: Url, tmp_path: Path) -> None:
    url = upload(at.shards, bucket)
    here, there = previews(at.shards, at.images), previews(str(url), at.images)
    assert there.source.table.ids == here.source.table.ids
    assert [there.thumbnail(n) for n in range(23)] == [here.thumbnail(n) for n in range(23)]
    assert there.thumbnail(0, latent=True) == here.thumbnail(0, latent=True)
    pages = []
    for place in (str(at.shards), str(url)):
        path = tmp_path / "report.html"
        summary = shardwright.look(place, images=at.images, report=path, samples=5)
        assert (summary.samples, summary.shown) == (23, 5)
        pages.append(path.read_text().replace(place, "FOLDER"))
    assert pages[0] == pages[1]


def test_look_shows_all_parts_of_a_split_folder_at_a_url(at: Folders, bucket: Url) -> None:
    here, there = previews(at.split), previews(f"{upload(at.split, bucket)}/")
    assert there.source.table.ids == here.source.table.ids
    assert there.source.buckets == here.source.buckets
    assert {bucket.part for bucket in there.source.buckets} == {"train", "val"}


def test_samples_at_a_url_are_compared_with_their_images(at: Folders, bucket: Url) -> None:
    url = upload(at.shards, bucket)
    report = shardwright.verify(str(url), against=at.images, samples=3, workers=1)
    assert (report.findings, report.recomputed) == ([], 3)


def test_a_split_folder_at_a_url_is_checked_with_all_its_parts(at: Folders, bucket: Url) -> None:
    url = upload(at.split, bucket)
    here = shardwright.verify(at.split, read_data=True, workers=1)
    there = shardwright.verify(str(url), read_data=True, workers=1)
    assert (there.findings, there.checked) == ([], here.checked)
    tar = next(path for path in sorted((at.split / "val").rglob("*.tar")))
    (url / "copy/a.tar").write(tar.read_bytes())
    (found,) = shardwright.verify(str(url), workers=1).findings
    assert str(found).startswith("copy: is outside the parts, with 1 tar file: loaders")
