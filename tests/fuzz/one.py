"""``python -m tests.fuzz.one TARGET FOLDER [-flag=value ...]``: one target, with libFuzzer's flags.

A file in place of the folder is run once: so an input that was kept is looked at again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["shardwright", "tests.fuzz"]):
    from tests.fuzz.targets import TARGETS, corpus

name = sys.argv.pop(1)
for place in map(Path, sys.argv[1:]):
    if place.is_dir():
        for number, data in enumerate(corpus(name)):
            (place / f"seed-{number}").write_bytes(data)
atheris.Setup(sys.argv, TARGETS[name])
atheris.Fuzz()
