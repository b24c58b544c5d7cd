"""Models that do not fit on a device together take turns: real models, a device of few bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright
from shardwright.deriving.batches import Pass
from shardwright.deriving.machine import rooms
from shardwright.encoders import load
from shardwright.encoders.base import Options
from shardwright.encoders.contract import picture
from shardwright.encoders.devices import Device
from shardwright.encoders.pretrained import Turns
from shardwright.errors import ShardwrightError
from tests.derive.encoders.models import with_model
from tests.derive.encoders.plain import encoded
from tests.derive.encoders.test_pretrained import COMPONENT, Checkpoints
from tests.derive.pictures import make_images

SOURCES: dict[str, Any] = {"dinov3": picture(64, 48), "vae": picture(64, 48), "t5": "a red kite"}


class Small(Device):
    """Has so many bytes for models, and notes which come and go."""

    def __init__(self, room: int, *, watched: bool = True) -> None:
        super().__init__("cpu")
        self.room, self.watched = room, watched
        self.there: dict[int, int] = {}
        self.moves: list[str] = []

    def has_room(self, nbytes: int) -> bool:
        return not self.watched or sum(self.there.values()) + nbytes <= self.room

    def put(self, module: Any) -> None:  # noqa: ANN401
        if sum(self.there.values()) + _bytes(module) > self.room:
            raise RuntimeError("CUDA error: out of memory")
        self.there[id(module)] = _bytes(module)
        self.moves.append(f"+{type(module).__name__}")

    def take_back(self, module: Any) -> None:  # noqa: ANN401
        if self.there.pop(id(module), None):
            self.moves.append(f"-{type(module).__name__}")


def _bytes(module: Any) -> int:  # noqa: ANN401
    return sum(p.numel() * p.element_size() for p in (*module.parameters(), *module.buffers()))


def loaded(checkpoints: Checkpoints, device: Device) -> dict[str, Any]:
    models: dict[Any, Any] = {(Device, "cpu"): device}
    return {
        name: load("pretrained", with_model(COMPONENT[name], folder), Options("cpu"), models)
        for name, folder in checkpoints.items()
    }


def sizes(checkpoints: Checkpoints) -> dict[str, int]:
    made = loaded(checkpoints, Device("cpu"))
    return {name: encoder._shared.nbytes for name, encoder in made.items()}


def test_models_that_fit_together_stay(checkpoints: Checkpoints) -> None:
    device = Small(sum(sizes(checkpoints).values()))
    encoders = loaded(checkpoints, device)
    for _ in range(2):
        for name, encoder in encoders.items():
            encoded(encoder, SOURCES[name])
    assert device.moves == ["+DINOv3ViTModel", "+AutoencoderKL", "+T5EncoderModel"]
    assert not any(encoder.takes_turns for encoder in encoders.values())


@pytest.mark.parametrize("watched", [True, False], ids=["measured", "tried"])
def test_the_model_that_was_used_last_stays_and_the_first_one_goes(
    checkpoints: Checkpoints, watched: bool
) -> None:
    room = sizes(checkpoints)
    device = Small(sum(room.values()) - 1, watched=watched)
    encoders = loaded(checkpoints, device)
    expected = {n: encoded(e, SOURCES[n]) for n, e in loaded(checkpoints, Device("cpu")).items()}
    for name in ("dinov3", "vae", "dinov3", "t5", "vae", "dinov3"):
        assert np.array_equal(encoded(encoders[name], SOURCES[name]), expected[name])
    assert device.moves[:3] == ["+DINOv3ViTModel", "+AutoencoderKL", "-AutoencoderKL"]
    assert encoders["vae"].takes_turns


def test_a_model_too_large_for_the_device_alone_says_what_to_do(checkpoints: Checkpoints) -> None:
    room = sizes(checkpoints)
    encoders = loaded(checkpoints, Small(room["t5"] - 1))
    with pytest.raises(ShardwrightError, match="do not fit on cpu; use --dtype t5=bfloat16, or"):
        encoded(encoders["t5"], SOURCES["t5"])


def crowded(checkpoints: Checkpoints, device: Small, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    """Give a VAE that runs out of memory while another model is there, and one is."""
    encoders = loaded(checkpoints, device)
    encoded(encoders["t5"], SOURCES["t5"])
    compute = type(encoders["vae"])._compute

    def computed(self: Any, *inputs: Any) -> Any:  # noqa: ANN401
        if len(device.there) > 1:
            raise RuntimeError("CUDA out of memory")
        return compute(self, *inputs)

    monkeypatch.setattr(type(encoders["vae"]), "_compute", computed)
    return encoders["vae"]


def test_one_input_that_needs_all_memory_gets_the_device_for_itself(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Small(10**12)
    vae = crowded(checkpoints, device, monkeypatch)
    source = SOURCES["vae"]
    with pytest.raises(MemoryError):
        vae.encode(np.stack([source, source]))
    assert vae.encode(source[None].copy()).shape == (1, 16, 6, 8), "not before it is alone"
    assert device.moves[-1] == "-T5EncoderModel"


def test_models_that_take_turns_leave_the_device_before_a_batch_is_halved(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Small(10**12)
    vae = crowded(checkpoints, device, monkeypatch)
    vae._shared.turns.needed = True
    source = SOURCES["vae"]
    assert vae.encode(np.stack([source, source])).shape == (2, 16, 6, 8)
    assert device.moves[-1] == "-T5EncoderModel"


def test_the_room_for_a_batch_is_not_measured_where_models_take_turns(
    checkpoints: Checkpoints,
) -> None:
    for room, measured in ((sum(sizes(checkpoints).values()), True), (0, False)):
        encoders = loaded(checkpoints, Small(room or max(sizes(checkpoints).values())))
        through = Pass({COMPONENT["vae"]: encoders["vae"]})
        for name, encoder in encoders.items():
            encoded(encoder, SOURCES[name])
        assert (through in rooms([through])) is measured


class Noting(Device):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.notes: list[str] = []

    def ready(self, sent: Any) -> Any:  # noqa: ANN401
        self.notes.append("run")
        return super().ready(sent)

    def mark(self) -> int:
        self.notes.append(f"mark {len(self.notes)}")
        return len(self.notes) - 1

    def fetch(self, choose: Any, mark: Any) -> Any:  # noqa: ANN401
        self.notes.append(f"fetch {mark}")
        return super().fetch(choose, mark)


def test_each_result_is_fetched_by_a_mark_that_was_set_before_the_next_run(
    checkpoints: Checkpoints,
) -> None:
    device = Noting()
    vae = loaded(checkpoints, device)["vae"]
    pictures = [picture(64, 48)[None] + np.uint8(number) for number in range(2)]
    made = [vae.run(vae.send(each)) for each in pictures]
    found = [vae.take(each) for each in made]
    assert device.notes == ["run", "mark 1", "run", "mark 3", "fetch 1", "fetch 3"]
    for each, array in zip(pictures, found, strict=True):
        assert np.array_equal(array, vae.encode(each))


def test_a_run_makes_the_same_arrays_with_little_memory(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images(tmp_path / "images", 3)
    models = {name: str(folder) for name, folder in checkpoints.items()}
    small = Small(max(sizes(checkpoints).values()))
    shardwright.derive(images, derived_dir=tmp_path / "plenty", model=models, device="cpu")
    monkeypatch.setattr("shardwright.encoders.pretrained.device_of", lambda *_: small)
    shardwright.derive(images, derived_dir=tmp_path / "little", model=models, device="cpu")
    assert small.moves.count("+AutoencoderKL") > 1
    plenty, little = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.npy")}
        for root in (tmp_path / "plenty", tmp_path / "little")
    )
    assert len(plenty) > 9
    assert plenty == little


class Box:
    """Stands for a model of so many bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.loaded = self

    def parameters(self) -> list[Any]:
        return [self]

    def buffers(self) -> list[Any]:
        return []

    def numel(self) -> int:
        return self.nbytes

    def element_size(self) -> int:
        return 1

    def too_large(self, device: Device) -> ShardwrightError:
        return ShardwrightError(f"too large for {device.name}")


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data(), st.booleans())
def test_whatever_is_used_is_there_and_the_device_is_never_too_full(
    nbytes: list[int], data: st.DataObject, watched: bool
) -> None:
    device = Small(10, watched=watched)
    turns, boxes = Turns(device), [Box(each) for each in nbytes]
    for box in data.draw(st.lists(st.sampled_from(boxes), max_size=20)):
        turns.bring(box)  # type: ignore[arg-type]
        assert id(box) in device.there
        assert sum(device.there.values()) <= device.room
    assert turns.needed == any(move.startswith("-") for move in device.moves)
