"""Tar keys: an image_id as it is written in member names, so that all loaders split them alike.

WebDataset ends a key at the first dot, DALI splits its index at white space, wids sees only the
first 100 bytes of a name. So a key has only the bytes ``A-Z a-z 0-9 _ - %``; ordinary ids are
their own keys, and the ``.json`` member holds the true id of the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ORDINARY = re.compile(r"(?!__)[A-Za-z0-9_-]+", re.ASCII)
_SAFE = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"


def key(image_id: str, longest: int) -> str:
    """Make the key of an image_id, at most ``longest`` bytes; different ids get different keys."""
    if _ORDINARY.fullmatch(image_id) and len(image_id) <= longest:
        return image_id
    pieces = [chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in image_id.encode()]
    if image_id.startswith("__"):  # webdataset reserves such names
        pieces[0] = "%5F"
    if sum(map(len, pieces)) <= longest:
        return "".join(pieces)
    import hashlib  # here, because few ids are that long, and it starts OpenSSL

    # "%-" cannot come from escaping, so a cut key never equals another id's key.
    tail = "%-" + hashlib.blake2b(image_id.encode(), digest_size=16).hexdigest()
    while sum(map(len, pieces)) > longest - len(tail):
        pieces.pop()
    return "".join(pieces) + tail


def keys(ids: Sequence[str], longest: int) -> Sequence[str]:
    """Make many keys; nearly always all ids are ordinary, which is faster to check at once."""
    joined = "\n".join(["", *ids]).encode()
    ordinary = joined.translate(None, _SAFE) == b"\n" * len(ids) and b"\n__" not in joined
    if ordinary and max(map(len, ids), default=0) <= longest:
        return ids
    return [key(image_id, longest) for image_id in ids]
