"""``--compile``: what is tried at the start of a run, and what is used then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardwright.deriving.batches import Batcher, Pass, tune
from shardwright.deriving.images import Size
from shardwright.encoders.devices import Device
from shardwright.encoders.pretrained import Pretrained
from tests.derive.fakes import DINO, Fake, given
from tests.derive.pictures import make_images, sketch
from tests.derive.test_steps import Warnings
from tests.durability.soak import SOAK


class Racer(Fake):
    """Takes so many seconds in each way, by a clock of its own."""

    dtype = "float32"
    way = "eager"

    def __init__(self, error: float = 0.0, room: int = 99, **seconds: float) -> None:
        super().__init__()
        self.seconds, self.error, self.now = {"eager": 1.0, **seconds}, error, 0.0
        self.room = room  # for so many pictures

    def ways(self) -> list[str]:
        return [way for way in self.seconds if way != "eager"]

    def use(self, way: str) -> None:
        self.way = way

    def encode(self, batch: NDArray[Any]) -> NDArray[Any]:
        if len(batch) > self.room:
            raise MemoryError
        if self.seconds[self.way] < 0:
            raise RuntimeError("no kernel\nat line 1")
        self.now += self.seconds[self.way]
        return super().encode(batch) * (1 if self.way == "eager" else 1 + self.error)


def tuned(encoder: Racer) -> Warnings:
    """Tune an encoder for batches of four, and give what is said."""
    through, progress = Pass({DINO: encoder}), Warnings()
    batcher = Batcher([through], 4, progress, {})
    tune(through, batcher, Size(64, 64), clock=lambda: encoder.now)
    assert len(batcher.full(through, Size(64, 64))[0]) == min(4, max(1, encoder.room))
    return progress


@pytest.mark.parametrize(
    ("racer", "way", "said"),
    [
        (lambda: Racer(compile=0.5), "compile", ["dinov3: compile, 2.00 times as fast as eager"]),
        (
            lambda: Racer(channels_last=0.8, compile=0.9),
            "channels_last",
            ["dinov3: channels_last, 1.25 times as fast as eager"],
        ),
        (lambda: Racer(compile=0.96), "eager", ["dinov3: eager; compile gains little"]),
        (lambda: Racer(compile=0.95), "compile", ["dinov3: compile, 1.05 times as fast as eager"]),
        (lambda: Racer(), "eager", ["dinov3: eager; nothing here can compile it"]),
        (
            lambda: Racer(compile=-1),
            "eager",
            ["warning: dinov3: compile does not work here (no kernel)", "dinov3: eager"],
        ),
        (
            lambda: Racer(compile=0.5, room=1),
            "compile",
            [
                "warning: dinov3: no memory for 4 images at a time; trying 2",
                "warning: dinov3: no memory for 2 images at a time; trying 1",
                "dinov3: compile, 2.00 times as fast as eager",
            ],
        ),
        (
            lambda: Racer(compile=0.5, room=0),
            "eager",
            [
                "warning: dinov3: no memory for 4 images at a time; trying 2",
                "warning: dinov3: no memory for 2 images at a time; trying 1",
                "warning: dinov3: eager; no memory to try other ways",
            ],
        ),
        (
            lambda: Racer(compile=0.1, error=1e-3),
            "eager",
            [
                "warning: dinov3: compile moves values by 1.0e-03, beyond the rounding of float32",
                "dinov3: eager",
            ],
        ),
    ],
)
def test_the_fastest_way_is_used_if_it_gains_enough_and_gives_the_same(
    racer: Callable[[], Racer], way: str, said: list[str]
) -> None:
    encoder = racer()
    assert (tuned(encoder).said, encoder.way) == (said, way)


def test_less_precise_arrays_may_move_more() -> None:
    encoder = Racer(compile=0.1, error=1e-3)
    encoder.dtype = "bfloat16"
    tuned(encoder)
    assert encoder.way == "compile"


def test_a_way_that_alone_runs_out_of_memory_is_not_used() -> None:
    class Greedy(Racer):
        def use(self, way: str) -> None:
            super().use(way)
            if way == "compile":
                raise MemoryError("out of memory")

    encoder = Greedy(compile=0.5)
    expected = ["warning: dinov3: compile does not work here (out of memory)", "dinov3: eager"]
    assert (tuned(encoder).said, encoder.way) == (expected, "eager")


def test_a_run_tries_full_batches_of_the_first_bucket_only_when_asked(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 1)
    for compile_, expected in ((False, [1, 1]), (True, [1, *[3] * 8, 1])):
        fake, progress = Racer(compile=0.5), Warnings()
        sketch(
            images,
            tmp_path / str(compile_),
            encoders=given(dinov3=fake),
            batch_size=3,
            compile=compile_,
            progress=progress,
        )
        assert fake.batches == expected


class Small(Pretrained):
    """A layer of its own, without a checkpoint."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        self.device, self.dtype, self._device = "cpu", "float32", Device("cpu")
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.GELU())

    @property
    def _model(self) -> Any:  # noqa: ANN401
        return self.layers

    @classmethod
    def examine(cls, *_: object) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def _compute(self, model: Any, *inputs: Any) -> Any:  # noqa: ANN401
        return model(inputs[0])

    def _choose(self, made: Any) -> Any:  # noqa: ANN401
        return made


SIZES = [np.random.default_rng(n).normal(size=(n, 8)).astype(np.float32) for n in (2, 3, 5, 7)]


def test_compiled_code_is_made_once_for_all_sizes_and_dropped_for_eager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    compiled: list[dict[str, Any]] = []

    def fake(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:  # noqa: ANN401
        compiled.append(options)
        return lambda *inputs: function(*inputs) * 2

    monkeypatch.setattr(torch, "compile", fake)
    encoder = Small()
    expected = [encoder.encode(each) for each in SIZES]
    encoder.use("compile")
    for each, array in zip(SIZES, expected, strict=True):
        assert np.array_equal(encoder.encode(each), array * 2)
    assert compiled == [{"dynamic": True}]
    encoder.use("eager")
    assert np.array_equal(encoder.encode(SIZES[0]), expected[0])


@pytest.mark.skipif(not SOAK, reason="runs a C++ compiler: make soak")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within torch
def test_torch_compiles_a_model_once_for_all_sizes() -> None:
    import torch

    encoder = Small()
    if encoder.ways() != ["compile"]:
        pytest.skip("no C++ compiler")
    expected = [encoder.encode(each) for each in SIZES]
    encoder.use("compile")
    torch._dynamo.utils.counters.clear()
    for each, array in zip(SIZES, expected, strict=True):
        np.testing.assert_allclose(encoder.encode(each), array, rtol=1e-5, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_what_cannot_be_compiled_later_is_computed_without() -> None:
    class Brittle(Small):
        """Compiled, it takes only batches of one."""

        component = DINO

        def use(self, way: str) -> None:
            self.way = way

        def _compute(self, _model: Any, *inputs: Any) -> Any:  # noqa: ANN401
            if self.way == "compile" and len(inputs[0]) > 1:
                raise RuntimeError("cannot compile this size")
            return inputs[0] * 2

    encoder, progress = Brittle(), Warnings()
    through = Pass({DINO: encoder})
    through.use("compile")
    with pytest.raises(RuntimeError, match="this size"):  # a trial wants to know
        encoder.encode(np.ones((2, 2), np.float32))
    through.use("compile", progress.warn)
    assert encoder.encode(np.ones((1, 2), np.float32)).tolist() == [[2, 2]]
    assert encoder.way == "compile"
    assert encoder.encode(np.ones((2, 2), np.float32)).tolist() == [[2, 2]] * 2
    assert encoder.way == "eager"
    assert progress.said == ["warning: dinov3: compile failed (cannot compile this size); not used"]
