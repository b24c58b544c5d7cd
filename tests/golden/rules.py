"""All that is not compared as it is: times, speeds, free space, and places of this machine.

Of standard error only errors and warnings are compared: the other lines are progress, whose order
and number depend on the speed of the machine.
"""

from __future__ import annotations

import re
from pathlib import Path

_NUMBER = r"\d[\d.,]*"
_VALUE = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"

# What a command prints: a pattern, and what takes its place.
PRINTED = (
    # How long it took, and how fast that was.
    (rf"\[{_NUMBER} s\b[^\]]*\]", "[SECONDS]"),
    # How long the rest would take.
    (r"\babout [\dhms ]*\d[hms](?= and | on )", "about TIME"),
    # What a trial measures.
    (r"(?m)^step +an image +rate$", "step  an image  rate"),
    (rf" +{_NUMBER} ms +{_NUMBER} images/s", "  MS  RATE"),
    (rf"(?m)(?<=^memory: at most ){_NUMBER} \w+", "BYTES"),
    (
        rf'"read": {_VALUE}(,\s+"encode": )\{{[^}}]*\}}(,\s+"memory": )\{{[^}}]*\}}',
        r'"read": NUMBER\1NUMBERS\2NUMBERS',
    ),
    # The room on the disk.
    (rf"{_NUMBER}(?: [kMGT]?B)? free", "SPACE free"),
    # Who holds a lock.
    (r"process \d+ on \S+", "process PID on HOST"),
    # The same in JSON, by their names.
    (rf'("(?:seconds\w*|free_bytes|encoder_waited|cores_used)"): {_VALUE}', r"\1: NUMBER"),
)

# What a file holds.
HELD = (
    # The pictures of a report: their bytes are those of this machine's Pillow.
    (rb"data:image/\w+;base64,[A-Za-z0-9+/=]+", b"PICTURE"),
    # Who held a lock, after a run that failed or was killed.
    (rb"^process \d+ on \S+\n$", b""),
    # The attempt that made a shard.
    (rb'"attempt":"[0-9a-f]{16}",', b""),
)

# A name of an attempt at a shard, in a path.
_ATTEMPT = re.compile(r"(?<=/\.shardwright/build/)[0-9a-f]{16}(?=/)|(?<=-)[0-9a-f]{16}(?=\.json$)")

# A folder that torch makes among the temporary files as soon as it is imported.
OF_TORCH = re.compile(r"torchinductor_\w+")


def named(path: str) -> str:
    """Give a path without the random name of an attempt at a shard."""
    return _ATTEMPT.sub("ATTEMPT", path)


def printed(text: str, folder: Path) -> str:
    """Give what a command has printed without what differs by machine and run."""
    text = named(text.replace(str(folder), "/WORK"))
    for pattern, replacement in PRINTED:
        text = re.sub(pattern, replacement, text)
    return text


# The beginning of a line of standard error that says what is wrong.
_COMPLAINT = re.compile(r"(?:[\w ]+: )?(error|warning): ")

# The checksum at the end of a document, of which a path of this machine is a part.
_CHECKSUM = re.compile(rb'(?<="xxh3": ")[0-9a-f]{16}(?="\n}\n$)')


def held(data: bytes, folder: Path) -> bytes:
    """Give the bytes of a file without what differs by machine and run."""
    if (path := str(folder).encode()) in data:
        data = _CHECKSUM.sub(b"CHECKSUM", data.replace(path, b"/WORK"))
    for pattern, replacement in HELD:
        data = re.sub(pattern, replacement, data)
    return data


def complaints(text: str) -> str:
    """Give what standard error says is wrong: such a line, and those below it that are indented."""
    found, told = "", False
    for line in text.splitlines(keepends=True):
        told = bool(_COMPLAINT.match(line)) or (told and line.startswith(" "))
        found += line if told else ""
    return found
