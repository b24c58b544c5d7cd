"""Our own pack with fsync or checksums taken out: what they cost."""

import sys

import xxhash

import shardwright
from shardwright.storage import files
from shardwright.storage.disk import Disk

store, output, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Unsynced(Disk):
    def fsync(self, fd: int) -> None:
        pass

    def fsync_folder(self, path: object) -> None:
        pass


class NoHash:
    def __init__(self, data: bytes = b"") -> None:
        pass

    def update(self, data: object) -> None:
        pass

    def intdigest(self) -> int:
        return 0

    def hexdigest(self) -> str:
        return "0"


if "--no-checksums" in sys.argv:
    for name, stand_in in (
        ("xxh3_64", NoHash),
        ("xxh3_128", NoHash),
        ("xxh3_64_intdigest", lambda data: 0),
    ):
        setattr(xxhash, name, stand_in)
with files.using(Unsynced() if "--no-fsync" in sys.argv else Disk()):
    shardwright.pack(derived_dir=store, output_dir=output, workers=workers)
