"""Reading shards for training: ``open``. NumPy is imported only when it is called."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardwright.errors import UsageError
from shardwright.validate import as_text, integer, place, require_mapping

if TYPE_CHECKING:
    from shardwright.shards.reader.dataset import Dataset
    from shardwright.storage.cache import Cache

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT]?B)", re.ASCII | re.IGNORECASE)
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def open(  # noqa: A001 - for shardwright.open, as gzip.open
    path: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
) -> Dataset:
    """Open a shard folder for reading: a dataset of samples whose arrays map the files.

    With the ``remote`` extra the path may be a URL: ``s3://``, or any other that fsspec knows.
    ``storage_options`` are passed to fsspec, which then also reads ``s3://``. Samples are fetched
    in ranges, ahead of a loop over samples or batches. What was read from a URL is kept in
    ``cache_dir``, up to ``cache_size`` (bytes, or a text such as ``"200GB"``); other processes may
    use the same folder, and removing it is safe at any time.

    Without a manifest the headers of all shards are read once, with a warning: those in the
    ``bucket_WIDTHxHEIGHT`` folders, or else every ``*.tar`` of the folder itself as one bucket.
    Missing and truncated shards are an error (at a URL when they are read), and so is a sample
    that is not the one its index names; only ``shardwright verify --read-data`` checks every byte.
    """
    from shardwright.shards.reader.catalog import open_catalog
    from shardwright.shards.reader.dataset import Dataset
    from shardwright.shards.reader.view import View
    from shardwright.storage.fetched import folder_at

    if storage_options is not None:
        require_mapping("storage_options", storage_options, "names to values")
    location, cache = as_text("path", path), _cache(cache_dir, cache_size)
    folder = folder_at(location, storage_options, cache)
    return Dataset(View(folder, open_catalog(folder)))


def _cache(path: str | os.PathLike[str] | None, size: int | str | None) -> Cache | None:
    from shardwright.storage.cache import Cache

    if path is None and size is None:
        return None
    if path is None or size is None:
        what = "cache_dir and cache_size belong together"
        raise UsageError(what, fix='give both, for example cache_size="200GB"')
    if isinstance(size, str):
        found = _SIZE.fullmatch(size)
        if found is None:
            raise UsageError(f"cache_size is {size!r}", fix='give for example "200GB"')
        size = int(float(found[1]) * _UNITS[found[2].lower()])
    return Cache(place("cache_dir", path), integer("cache_size", size))
