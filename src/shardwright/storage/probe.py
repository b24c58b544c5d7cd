"""Whether a folder at an object store can be written to, by more than one writer."""

from __future__ import annotations

import os
from contextlib import suppress

from shardwright.errors import StorageError
from shardwright.layout import STATE_FOLDER
from shardwright.storage.objects import NEW, ConditionError, UnsupportedError, tried
from shardwright.storage.remote import RemotePlace
from shardwright.storage.urls import Url

_PREFIX = "probe-"
_TRIES = 3  # another run may remove the file, which looks as if conditions were ignored


def require_conditions(folder: Url) -> None:
    """Write a file for a try, and remove it.

    A store that ignores conditions would let two writers replace each other's files, so it is
    refused.
    """
    try:
        _remove_left(folder / STATE_FOLDER)
        knows = any(_knows_conditions(folder / STATE_FOLDER) for _ in range(_TRIES))
    except StorageError as error:
        what = f"cannot write to this folder ({error.what})"
        raise StorageError(what, path=folder, fix=error.fix) from error
    if not knows:
        what = "this store ignores conditions, so two runs at once could replace each other's files"
        fix = "use another store, or write to a folder and copy it there"
        raise StorageError(what, path=folder, fix=fix)


def _remove_left(folder: Url) -> None:
    """Remove the files of tries that were killed; a run that loses its own so tries again."""
    with suppress(StorageError):  # it may not be allowed, and nothing depends on it
        for name in folder.names():
            if name.startswith(_PREFIX):
                (folder / name).remove()


def _knows_conditions(folder: Url) -> bool:
    """Whether a store refuses to replace a file that exists, or that has another etag by now."""
    probe = folder / f"{_PREFIX}{os.urandom(8).hex()}"
    first = probe.write(b"first")
    try:
        replaced = _written(probe, b"second", NEW)
        updated = _written(probe, b"third", first)
        outdated = _written(probe, b"fourth", first)
        return (replaced, updated, outdated) == (False, True, False) and not _uploaded(probe)
    except StorageError as error:
        if isinstance(error.__cause__, UnsupportedError):
            return False
        raise
    finally:
        probe.remove()


def _written(probe: Url, data: bytes, condition: str) -> bool:
    try:
        probe.write(data, condition)
    except ConditionError:
        return False
    return True


def _uploaded(probe: Url) -> bool:
    """Whether an upload in parts, as that of a large file, replaces a file that exists."""
    objects, key, data = probe.objects, probe.key, memoryview(b"fifth")
    upload = tried(lambda: objects.begin(key), str(probe))
    try:
        part = tried(lambda: objects.part(key, upload, 1, data), str(probe))
        tried(lambda: objects.complete(key, upload, [part], NEW), str(probe))
    except ConditionError:
        return False
    finally:
        tried(lambda: objects.abort(key, upload), str(probe))
        RemotePlace(probe.parent).abandon([probe.name])  # one whose name did not reach us
    return True
