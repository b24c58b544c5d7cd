"""A place: a folder of this machine or at an object store, with the same methods.

Nobody else asks which one it is. What differs is inside: syncs, names for what is half written,
locks here; requests, retries, parts and conditions there. ``files`` has what is done with one file.
"""

from __future__ import annotations

from typing import TypeAlias

from shardwright.storage.local import LocalPlace
from shardwright.storage.remote import RemotePlace
from shardwright.storage.urls import Location, Url

Place: TypeAlias = LocalPlace | RemotePlace


def place_at(folder: Location) -> Place:
    """Give the place that a folder is."""
    return RemotePlace(folder) if isinstance(folder, Url) else LocalPlace(folder)
