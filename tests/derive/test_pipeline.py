"""The pipeline by itself, with stages that are made up: who waits, and what is committed."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from shardwright.deriving.pipeline import Order, Pipeline, Report
from shardwright.deriving.prepare import Sample
from shardwright.deriving.sources import Source
from shardwright.progress import Progress


class Encoding:
    """Encodes nothing."""

    batch_size, takes_turns = 8, False

    def stack(self, samples: list[Sample]) -> list[Sample]:
        return samples

    def encode(self, batches: list[Sample]) -> None:
        for sample in batches:
            sample.inputs.clear()


class Committing:
    """Remembers what was committed; fails once, at one sample."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at, self.done = fails_at, list[int]()

    def check(self, sample: Sample) -> None:
        sample.made = {}

    def commit(self, samples: list[Sample]) -> None:
        for sample in samples:
            if int(sample.source.image_id) == self.fails_at:
                self.fails_at = None
                time.sleep(0.05)  # while the next groups are encoded
                raise OSError("disk full")
            self.done.append(int(sample.source.image_id))


def run(count: int, read: Any, committing: Committing, readers: int) -> None:  # noqa: ANN401
    samples = (
        Sample(Source(str(n), f"{n}.jpg", False), (), None, None, [], False, {}, {})
        for n in range(count)
    )
    encoding: Any = Encoding()
    target: Any = committing
    order = Order(samples, lambda _: None)
    list(Pipeline(order, read, encoding, target, Progress(), Report()).run(count, readers))


def test_all_readers_are_busy_however_large_the_pictures_are() -> None:
    busy, most, lock = 0, 0, threading.Lock()
    large = np.lib.stride_tricks.as_strided(np.zeros(1), (36 << 20,), (0,))  # it takes no memory

    def read(sample: Sample) -> Sample:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.02)
        with lock:
            busy -= 1
        through: Any = "large"
        sample.inputs[through] = (large,)
        return sample

    committing = Committing()
    run(120, read, committing, readers=24)
    assert most == 24
    assert committing.done == list(range(120))


def test_after_a_commit_that_failed_nothing_is_committed() -> None:
    committing = Committing(fails_at=20)
    with pytest.raises(OSError, match="disk full"):
        run(400, lambda sample: sample, committing, readers=2)
    assert committing.done == list(range(len(committing.done)))
    assert len(committing.done) <= 20


def test_what_was_encoded_is_committed_although_the_run_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    committing, encoded = Committing(), list[int]()
    encode = Encoding.encode

    def remember(self: Encoding, batches: list[Sample]) -> None:
        encode(self, batches)
        encoded.extend(int(sample.source.image_id) for sample in batches)
        if len(encoded) > 20:
            monkeypatch.setattr("shardwright.deriving.pipeline.check", interrupt)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Encoding, "encode", remember)
    with pytest.raises(KeyboardInterrupt):
        run(400, lambda sample: sample, committing, readers=2)
    assert committing.done == encoded
