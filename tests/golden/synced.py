"""What a loss of power could take, found in the log of the hook: names that no sync made safe."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

_MOVES = ("rename", "replace", "link")
_SYNCS = ("fsync", "fdatasync")
_MANIFEST = ".shardwright/manifest.json"
# A file of these names says that others are complete, as soon as it is there.
_PROOFS = ("manifest.json", "commits")
# So does a line in this, from its sync on; and that this is gone.
_JOURNAL, _NOTE = "approved_image_dataset.jsonl.tmp", "unfinished.json"


def losses(log: Iterable[str], before: Collection[str], made: Collection[str]) -> list[str]:
    """Say what was not synced in time, of a run that found these files and made those.

    The bytes of a file are synced before it gets its name; the folder of a name after that, and
    before anything says that it is there. Once there is a manifest, no shard is renamed.
    """
    found: list[str] = []
    safe = set(before)  # files whose bytes are
    loose: dict[str, str] = {}  # by new name, the folder that holds it, if not synced since
    published: list[str] = []  # folders that have a manifest
    for line in log:
        call, path, *to = line.split("\t")
        if call in _SYNCS:
            if path.endswith(_JOURNAL):
                found += [f"{name} is recorded, and not synced" for name in sorted(loose)]
            safe.add(path)
            loose = {name: folder for name, folder in loose.items() if folder != path}
        elif call == "mkdir":
            loose[path] = os.path.dirname(path)
            safe.add(path)
        elif call in _MOVES:
            (name,) = to
            if path not in safe:
                found.append(f"{name} got its name before its bytes were synced")
            if _proves(name):
                found += [f"{each} is recorded, and not synced" for each in sorted(loose)]
            if name.endswith(".tar") and any(name.startswith(each) for each in published):
                found.append(f"{name} got its name after the manifest")
            if name.endswith(_MANIFEST):
                published.append(name.removesuffix(_MANIFEST))
            safe.add(name)
            loose.pop(path, None)
            loose[name] = os.path.dirname(name)
        elif call in ("unlink", "remove", "rmdir"):
            if path.endswith(_NOTE):
                found += [f"{each} is recorded, and not synced" for each in sorted(loose)]
            loose.pop(path, None)
            loose = {n: f for n, f in loose.items() if not f"{f}/".startswith(f"{path}/")}
    found += [f"the bytes of {name} were never synced" for name in sorted({*made} - safe)]
    return [*found, *(f"{name} is there, and not synced" for name in sorted(loose))]


def _proves(name: str) -> bool:
    return os.path.basename(name) in _PROOFS or os.path.basename(os.path.dirname(name)) in _PROOFS
