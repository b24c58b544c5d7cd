"""Makes ``present.tar.xz``, which holds what this version leaves, finished and interrupted.

``make present`` runs it. A folder in it is what a case of ``tests.golden`` has left, or what was
there when its last step was killed. The path of that folder, where a file holds it, is /PRESENT.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.cases import CASES, LAYOUTS
from tests.golden.inputs import BORN
from tests.golden.relay import relayed
from tests.golden.workshop import Workshop
from tests.servers import running

ARCHIVE = Path(__file__).with_name("present.tar.xz")
FINISHED = ("pack", "pack-split", "build")  # a store and its shards, a split folder, a build
KILLED = tuple(case.name for case in CASES.values() if case.again is not None)
OBJECTS = "objects"  # in such a folder, what the bucket held
PLACE = b"/PRESENT"
LATER = BORN + 86_400  # when all of it was made


def layout(name: str) -> str:
    """Give the layout in which a case is kept: that of the specification, where it is small."""
    return "flux" if name == "recompute-fit" else "prx"


def main() -> None:
    """Make all folders, and write them to the archive."""
    with TemporaryDirectory() as root, running("moto", Path(root)) as server:
        made = Path(root) / "made"
        with relayed(server) as relay:
            shops = {name: Workshop(Path(root, name), name, lambda: relay) for name in LAYOUTS}
            for name in FINISHED:
                shop = shops[layout(name)]
                shop.run(CASES[name])
                keep(shop, made / "finished" / name)
            for name in KILLED:
                shop = shops[layout(name)]
                kill(shop, name)
                keep(shop, made / "killed" / name)
        write(made)
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size:,} bytes")


def kill(shop: Workshop, name: str) -> None:
    """Run a case until it is killed, after two fifths of what it changes."""
    words = shop.before_last(CASES[name])
    shop.keep("killed")
    changes = shop.requests_of(words) if shop.bucket else len(shop.changes_of(words))
    shop.restore("killed")
    assert shop.kill(words, changes * 2 // 5, "after") < 0


def keep(shop: Workshop, target: Path) -> None:
    """Copy what is there, with the objects of the bucket."""
    shutil.copytree(shop.folder, target)
    objects = shop.bucket.contents() if shop.bucket else {}
    for key, data in objects.items():
        path = target / OBJECTS / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    replace(target, str(shop.folder).encode(), PLACE)


def replace(folder: Path, old: bytes, new: bytes) -> None:
    """Put one path in the place of another in all files."""
    for path in folder.rglob("*"):
        if path.is_file() and old in (data := path.read_bytes()):
            times = path.stat().st_atime_ns, path.stat().st_mtime_ns
            path.write_bytes(data.replace(old, new))
            os.utime(path, ns=times)


def write(made: Path) -> None:
    """Write the archive: each content once, and nothing of who made it when."""
    names: dict[tuple[bytes, int], str] = {}
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for path in sorted(made.rglob("*")):
            info = tarfile.TarInfo(str(path.relative_to(made)))
            time = path.stat().st_mtime
            info.mtime = int(time) if time.is_integer() else LATER  # inputs keep theirs
            if path.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
                continue
            data = path.read_bytes()
            first = names.setdefault((data, info.mtime), info.name)
            if first != info.name:
                info.type, info.linkname = tarfile.LNKTYPE, first
            else:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data[: info.size]))


if __name__ == "__main__":
    main()
