"""Batches on a device: the next is begun before one is waited for, and memory may run out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardwright.deriving.batches import Batch, Batcher, Pass
from shardwright.deriving.prepare import Sample
from shardwright.progress import Progress
from tests.derive.fakes import DINO, VAE, Fake


class Stepwise(Fake):
    """Works in steps on a device with memory for so many numbers, and notes what it does."""

    def __init__(self, events: list[str], room: int = 10**9, name: str = "") -> None:
        super().__init__()
        self.events, self.room, self.name = events, room, name
        self.bad: set[int] = set()

    def _note(self, step: str, batch: NDArray[Any]) -> None:
        self.events.append(f"{step} {self.name}{','.join(map(str, batch[:, 0].astype(int)))}")

    def send(self, batch: NDArray[Any]) -> NDArray[Any]:
        self._note("send", batch)
        if batch.size > self.room:
            raise MemoryError
        return batch.copy()

    def run(self, sent: NDArray[Any]) -> NDArray[Any]:
        self._note("run", sent)
        if self.bad & set(sent[:, 0].astype(int)):
            raise RuntimeError("device-side assert triggered")
        if sent.size * 2 > self.room:
            raise MemoryError
        return sent * 10

    def take(self, made: NDArray[Any]) -> NDArray[Any]:
        self._note("take", made // 10)
        return np.repeat(made[:, :1], 1024, axis=1).astype(np.float32)


class Warnings(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def batches(through: Pass, *numbers: list[int]) -> list[Batch]:
    found = []
    for group in numbers:
        samples: list[Any] = [_sample(through) for _ in group]
        found.append(Batch(through, samples, (np.array(group, np.float32)[:, None],)))
    return found


def _sample(through: Pass) -> Any:  # noqa: ANN401 - only what is filled in
    sample = Sample.__new__(Sample)
    sample.make, sample.arrays, sample.failure = set(through.components), {}, None  # type: ignore[assignment]
    return sample


def values(found: list[Batch]) -> list[list[float | None]]:
    return [
        [float(s.arrays[DINO][0]) if DINO in s.arrays else None for s in batch.samples]
        for batch in found
    ]


def batcher(through: Pass) -> Batcher:
    return Batcher([through], 8, Warnings(), {})


def test_the_next_batch_is_begun_before_the_present_one_is_waited_for() -> None:
    events: list[str] = []
    through = Pass({DINO: Stepwise(events)})
    work = batches(through, [1, 2], [3], [4])
    batcher(through).encode(work)
    assert events == [
        "send 1,2",
        "run 1,2",
        "send 3",
        "run 3",
        "take 1,2",
        "send 4",
        "run 4",
        "take 3",
        "take 4",
    ]
    assert values(work) == [[10, 20], [30], [40]]


def test_the_first_batch_of_another_model_is_begun_ahead_too() -> None:
    events: list[str] = []
    one, other = (Pass({DINO: Stepwise(events, name=name)}) for name in ("a", "b"))
    Batcher([one, other], 8, Warnings(), {}).encode([*batches(one, [1]), *batches(other, [2])])
    assert events == ["send a1", "run a1", "send b2", "run b2", "take a1", "take b2"]


def test_a_batch_that_does_not_fit_is_halved_and_so_are_those_after_it() -> None:
    events: list[str] = []
    through = Pass({DINO: Stepwise(events, room=4)})
    made, work = batcher(through), batches(through, [1, 2, 3, 4], [5, 6, 7])
    made.encode(work)
    assert values(work) == [[10, 20, 30, 40], [50, 60, 70]]
    assert [event for event in events if event.startswith("run")] == [
        "run 1,2,3,4",
        "run 1,2",
        "run 3,4",
        "run 5,6",
        "run 7",
    ]
    assert made.progress.said == [  # type: ignore[attr-defined]
        "warning: dinov3: no memory for 4 images at a time; trying 2"
    ]


class Leaky(Stepwise):
    """Runs out of memory when results of more than one input are fetched."""

    def take(self, made: NDArray[Any]) -> NDArray[Any]:
        if len(made) > 1:
            raise MemoryError
        return super().take(made)


def test_memory_that_ends_while_fetching_halves_the_batch_that_is_fetched() -> None:
    events: list[str] = []
    through = Pass({DINO: Leaky(events)})
    made, work = batcher(through), batches(through, [1, 2], [3])
    made.encode(work)
    assert values(work) == [[10, 20], [30]]
    assert events[4:] == [
        "take 3",  # before the other is tried alone
        "send 1,2",
        "run 1,2",
        "send 1",
        "run 1",
        "take 1",
        "send 2",
        "run 2",
        "take 2",
    ]
    assert made.progress.said == [  # type: ignore[attr-defined]
        "warning: dinov3: no memory for 2 images at a time; trying 1"
    ]


class Refuses(Stepwise):
    """Has no memory for a second batch while one is computed."""

    busy = False

    def run(self, sent: NDArray[Any]) -> NDArray[Any]:
        if self.busy:
            raise MemoryError
        self.busy = True
        return super().run(sent)

    def take(self, made: NDArray[Any]) -> NDArray[Any]:
        self.busy = False
        return super().take(made)


def test_a_batch_that_does_not_fit_beside_another_is_tried_alone() -> None:
    events: list[str] = []
    through = Pass({DINO: Refuses(events)})
    made, work = batcher(through), batches(through, [1, 2], [3, 4], [5, 6])
    made.encode(work)
    assert values(work) == [[10, 20], [30, 40], [50, 60]]
    assert events.count("send 3,4") == 2
    assert events.count("send 5,6") == 1, "two at a time are not tried again"
    assert made.progress.said == [], "no batch is halved for it"  # type: ignore[attr-defined]


@settings(deadline=None, max_examples=200)
@for_all(st.lists(st.integers(1, 6), max_size=6), st.integers(1, 12), st.sets(st.integers(0, 20)))
def test_whatever_fails_every_sample_has_its_own_array_or_its_own_failure(
    sizes: list[int], room: int, bad: set[int]
) -> None:
    numbers = iter(range(100))
    encoder = Stepwise([], room=room)
    encoder.bad = bad
    through = Pass({DINO: encoder})
    groups = [[next(numbers) for _ in range(size)] for size in sizes]
    work = batches(through, *groups)
    batcher(through).encode(work)
    for batch, group in zip(work, groups, strict=True):
        for sample, number in zip(batch.samples, group, strict=True):
            if number in bad:
                assert sample.failure == ("encoder_failed", "dinov3: device-side assert triggered")
            elif room < 2:
                assert sample.failure == ("out_of_memory", "dinov3: not enough memory for it")
            else:
                assert sample.failure is None
                assert sample.arrays[DINO][0] == number * 10


def test_encoders_of_one_model_take_from_one_run_in_steps() -> None:
    events: list[str] = []
    first, second = Stepwise(events), Stepwise(events, name="other ")
    through = Pass({DINO: first, VAE: second})
    found = through.encode(np.array([[1.0], [2.0]]))
    assert events == ["send 1,2", "run 1,2", "take 1,2", "take other 1,2"]
    assert set(found) == {DINO, VAE}


class Whole(Fake):
    """Has forward and take, and no steps; the next forward overwrites what the last one gave."""

    given = np.zeros(())

    def forward(self, batch: NDArray[Any]) -> NDArray[Any]:
        Whole.given.fill(-1)
        Whole.given = batch + 1
        return Whole.given

    def take(self, made: NDArray[Any]) -> NDArray[Any]:
        return made.copy()


@pytest.mark.parametrize("count", [1, 2])
def test_an_encoder_without_steps_is_run_as_before(count: int) -> None:
    through = Pass(
        dict(zip((DINO, VAE), (Whole(), Whole()), strict=True)) if count == 2 else {DINO: Whole()}
    )
    (array, *_) = through.encode(np.zeros((3, 4, 4), np.float32)).values()
    assert array.shape[0] == 3
    assert array.max() == (1 if count == 2 else 0)


def test_without_steps_a_result_is_taken_before_the_next_batch_is_run() -> None:
    through = Pass({DINO: Whole(), VAE: Whole()})
    work = batches(through, [1, 2], [3], [4])
    batcher(through).encode(work)
    assert values(work) == [[2, 3], [4], [5]]
