"""The targets of the fuzzer on a handful of inputs, so that they never rot."""

from __future__ import annotations

import random

import pytest

from tests.durability.soak import Tally
from tests.fuzz.targets import TARGETS, corpus

EACH = 20


@pytest.mark.parametrize("name", TARGETS)
def test_the_fuzz_targets_survive_real_files_and_small_changes(name: str, tally: Tally) -> None:
    draw = random.Random(name)
    for complete in corpus(name):
        TARGETS[name](complete)
        for _ in range(EACH):
            damaged = bytearray(complete)
            at = draw.randrange(len(complete))
            damaged[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
            TARGETS[name](bytes(damaged))
            TARGETS[name](complete[:at])
            tally(fuzz_executions=2)
