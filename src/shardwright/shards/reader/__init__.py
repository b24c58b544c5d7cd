"""Reading shards for training: ``open``. NumPy is imported only when it is called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import UsageError
from shardwright.validate import as_text, require_mapping

if TYPE_CHECKING:
    from shardwright.shards.reader.dataset import Dataset


def open(  # noqa: A001 - for shardwright.open, as gzip.open
    path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Dataset:
    """Open a shard folder for reading: a dataset of samples whose arrays map the files.

    With the ``remote`` extra the path may be an fsspec URL; ``storage_options`` are passed to it.
    Without a manifest the headers of all shards are read once, with a warning: those in the
    ``bucket_WIDTHxHEIGHT`` folders, or else every ``*.tar`` of the folder itself as one bucket.
    Missing and truncated shards are an error (at a URL when they are read), and so is a sample
    that is not the one its index names; only ``shardwright verify --read-data`` checks every byte.
    """
    from shardwright.shards.reader.catalog import open_catalog
    from shardwright.shards.reader.dataset import Dataset
    from shardwright.shards.reader.folder import Folder, LocalFolder
    from shardwright.shards.reader.remote import RemoteFolder
    from shardwright.shards.reader.view import View

    if storage_options is not None:
        require_mapping("storage_options", storage_options, "names to values")
    location = as_text("path", path)
    if "://" in location:
        folder: Folder = RemoteFolder(location, storage_options or {})
    elif Path(location).is_file():
        raise UsageError("is a file", path=location, fix="give the folder that holds the shards")
    else:
        folder = LocalFolder(Path(location))
    return Dataset(View(folder, open_catalog(folder)))
