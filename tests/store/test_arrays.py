"""Arrays are complete or missing, and only those of a recipe are read."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardwright.errors import NoSpaceError, StorageError
from shardwright.recipes import SPECIFICATION, Component
from shardwright.storage import files
from shardwright.store import content
from shardwright.store.arrays import (
    Array,
    check_values,
    read_array,
    stored,
    values,
    write_arrays,
)
from shardwright.store.npy import BadArrayError
from tests.faults import Call, FailingDisk, Killed, KillingDisk, WatchedDisk, contents
from tests.fuzz.targets import on_disk

DINO, VAE, T5 = SPECIFICATION.components


def saved(array: npt.NDArray[np.generic]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def group(folder: Path, count: int = 5) -> list[tuple[Path, Array | bytes]]:
    return [(folder / f"img{n}.npy", np.full(1024, n, "<f4")) for n in range(count)]


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["<f4", "<f2", "|u1", "<i8"]),
    st.lists(st.integers(0, 5), max_size=4).map(tuple),
    st.integers(0, 2**32 - 1),
)
def test_an_array_is_written_as_numpy_would(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, shape: tuple[int, ...], seed: int
) -> None:
    array = np.random.default_rng(seed).integers(0, 200, shape).astype(dtype)
    path = tmp_path_factory.mktemp("arrays") / "a.npy"
    write_arrays([(path, array)])
    assert path.read_bytes() == saved(array)


def test_an_array_in_another_memory_order_is_written_in_c_order(tmp_path: Path) -> None:
    array = np.arange(77 * 1024, dtype="<f2").reshape(1024, 77).T
    write_arrays([(tmp_path / "a.npy", array)])
    assert (read_array(tmp_path / "a.npy", T5) == array).all()


def test_scenario_vae_latent_has_correct_shape(tmp_path: Path) -> None:
    latent = np.ones(VAE.shape_for(width=768, height=1024), VAE.dtype)
    write_arrays([(tmp_path / "a.npy", latent)])
    loaded = np.load(tmp_path / "a.npy")
    assert loaded.shape == (16, 128, 96)
    assert loaded.dtype == np.float16


def test_scenario_vae_latent_file_size_is_approximately_correct(tmp_path: Path) -> None:
    # The scenario's 131 KB are those of 16 x 64 x 64; the required shape (16, H//8, W//8) has more.
    latent = np.ones(VAE.shape_for(1024, 1024), VAE.dtype)
    write_arrays([(tmp_path / "a.npy", latent)])
    assert (tmp_path / "a.npy").stat().st_size == 128 + 16 * 128 * 128 * 2


def test_scenario_t5_hidden_state_has_correct_shape(tmp_path: Path) -> None:
    write_arrays([(tmp_path / "a.npy", np.ones(T5.shape_for(832, 1216), T5.dtype))])
    loaded = np.load(tmp_path / "a.npy")
    assert loaded.shape == (77, 1024)
    assert loaded.dtype == np.float16


def test_scenario_t5_hidden_state_file_size_is_approximately_158kb(tmp_path: Path) -> None:
    write_arrays([(tmp_path / "a.npy", np.ones(T5.shape_for(832, 1216), T5.dtype))])
    assert (tmp_path / "a.npy").stat().st_size == 128 + 77 * 1024 * 2


def test_the_longest_id_has_room_for_its_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 251 + ".npy")
    write_arrays([(path, np.ones(1024, "<f4"))])
    assert read_array(path, DINO).sum() == 1024


def test_arrays_appear_only_when_all_of_the_group_is_on_the_disk(tmp_path: Path) -> None:
    with files.using(disk := WatchedDisk()):
        write_arrays(group(tmp_path))
    assert "rename" not in disk.names[:-6]
    assert disk.names.count("fsync") == 5
    assert disk.names[-6:] == ["rename"] * 5 + ["fsync_folder"]


def test_a_large_group_has_few_files_open(tmp_path: Path) -> None:
    class Counting(WatchedDisk):
        unsynced = most = 0

        def before(self, call: Call) -> None:
            self.unsynced += {"create": 1, "fsync": -1}.get(call.name, 0)
            self.most = max(self.most, self.unsynced)

    with files.using(disk := Counting()):
        write_arrays([(tmp_path / f"{n}.npy", np.ones(1024, "<f4")) for n in range(400)])
    assert 1 < disk.most <= 128
    assert len(contents(tmp_path)) == 400


def test_an_array_is_complete_or_missing_wherever_the_group_is_killed(tmp_path: Path) -> None:
    with files.using(watched := WatchedDisk()):
        write_arrays(group(_made(tmp_path / "unbroken")))
    expected = contents(tmp_path / "unbroken")
    for nth in range(1, len(watched.calls) + 1):
        folder = _made(tmp_path / str(nth))
        with files.using(KillingDisk(nth)), pytest.raises(Killed):
            write_arrays(group(folder))
        for name, data in contents(folder).items():
            assert name.endswith(".tmp") or data == expected[name]
        write_arrays(group(folder))
        assert contents(folder) == expected


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_group_leaves_no_temporary_file_and_can_be_written_again(
    tmp_path: Path, number: int
) -> None:
    with files.using(watched := WatchedDisk()):
        write_arrays(group(_made(tmp_path / "unbroken")))
    expected = contents(tmp_path / "unbroken")
    for nth in range(1, len(watched.calls) + 1):
        folder = _made(tmp_path / str(nth))
        disk = FailingDisk(nth, number, once=True)
        with files.using(disk), pytest.raises(StorageError) as raised:
            write_arrays(group(folder))
        assert str(folder) in str(raised.value)
        assert contents(folder).items() <= expected.items()
        write_arrays(group(folder))
        assert contents(folder) == expected


def test_a_full_disk_is_named_and_temporary_files_are_removed(tmp_path: Path) -> None:
    disk = FailingDisk(7, errno.ENOSPC, once=False)
    with files.using(disk), pytest.raises(NoSpaceError, match=f"{tmp_path}.*disk is full.*free"):
        write_arrays(group(tmp_path))
    assert contents(tmp_path) == {}


def test_only_an_array_of_the_schema_is_read(tmp_path: Path) -> None:
    good = saved(np.arange(1024, dtype="<f4"))
    reasons = {
        "truncated": good[:-1],
        "trailing_bytes": good + b"\0",
        "empty": b"",
        "not_npy": b"PK\3\4" + good,
        "wrong_dtype": saved(np.arange(1024, dtype=">f4")),
        "wrong_shape": saved(np.arange(1023, dtype="<f4")),
    }
    path = tmp_path / "a.npy"
    for reason, data in reasons.items():
        path.write_bytes(data)
        with pytest.raises(BadArrayError) as raised:
            read_array(path, DINO)
        assert raised.value.reason == reason
    path.write_bytes(good)
    assert read_array(path, DINO).tolist() == list(range(1024))


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("sprung",)


def test_a_pickled_array_is_refused_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trap = np.empty(1024, object)
    trap[0] = _Trap()
    with open("a.npy", "wb") as file:
        np.save(file, trap, allow_pickle=True)
    with pytest.raises(BadArrayError, match="pickled"):
        read_array(Path("a.npy"), DINO)
    assert not Path("sprung").exists()


def test_a_missing_array_and_a_pipe_in_its_place_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadArrayError, match="missing"):
        read_array(tmp_path / "a.npy", DINO)
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(BadArrayError, match="not_a_file"):
        read_array(tmp_path / "a.npy", DINO)


def of(dtype: str, *shape: int | str, encoder: str | None = "mine") -> Component:
    return Component("a", "a", "a.npy", dtype, shape, encoder=encoder)  # type: ignore[arg-type]


FLOATS = hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(width=32))


@settings(deadline=None, max_examples=200)
@given(FLOATS)
@example(np.array([0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 1, 0x8000, 0x18000], "<u4").view("<f4"))
@example(np.array([0xFFFFFFFF, 0x7F800001, 0x7FFFFFFF, 0xFF800000], "<u4").view("<f4"))
def test_bfloat16_is_rounded_and_read_as_torch_does(floats: npt.NDArray[np.float32]) -> None:
    torch = pytest.importorskip("torch")
    made = stored(floats, of("bfloat16", len(floats)))
    theirs = torch.from_numpy(floats.copy()).to(torch.bfloat16)
    assert made.dtype == "<u2"
    back = values(made, of("bfloat16", len(floats)))
    assert back.dtype == "<f4"
    assert np.array_equal(back, theirs.float().numpy(), equal_nan=True)
    numbers = ~np.isnan(floats)
    assert np.array_equal(made[numbers], theirs.view(torch.int16).numpy().view("<u2")[numbers])


@given(hnp.arrays(np.uint16, st.integers(1, 30)))
def test_every_bfloat16_survives_being_read_and_stored(bits: npt.NDArray[np.uint16]) -> None:
    component = of("bfloat16", len(bits))
    back = stored(values(bits, component), component)
    nan = np.isnan(values(bits, component))
    assert np.array_equal(back[~nan], bits[~nan])
    assert np.isnan(values(back, component)[nan]).all()


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", "|u1", "<i8", "|b1"])
def test_other_dtypes_are_stored_as_numpy_casts_them(dtype: str) -> None:
    array = np.array([[0, 1], [2.5, 100]], np.float32)
    made = stored(array, of(dtype, 2, 2))
    assert made.dtype.str == dtype
    assert np.array_equal(made, array.astype(dtype))
    assert values(made, of(dtype, 2, 2)) is made


def test_too_large_a_number_becomes_infinite_without_a_warning() -> None:
    assert np.isinf(stored(np.array([1e30], np.float32), of("<f2", 1))).all()
    of_16_bits = of("bfloat16", 1)
    assert np.isinf(values(stored(np.array([1e300]), of_16_bits), of_16_bits)).all()


def test_a_bfloat16_array_is_written_and_read_as_its_bits(tmp_path: Path) -> None:
    component = of("bfloat16", 3)
    write_arrays([(tmp_path / "a.npy", stored(np.array([1, -2.5, 3e38], np.float32), component))])
    assert np.load(tmp_path / "a.npy").dtype == np.uint16
    found = read_array(tmp_path / "a.npy", component)
    assert values(found, component) == pytest.approx([1, -2.5, 3e38], rel=0.004)
    with pytest.raises(BadArrayError, match="wrong_dtype"):
        read_array(tmp_path / "a.npy", of("<f2", 3))


@pytest.mark.parametrize(
    ("component", "array", "fault"),
    [
        (of("<f4", 4), np.zeros(4), "constant"),
        (of("<f4", 4, encoder=None), np.zeros(4), None),
        (of("<f4", 1), np.zeros(1), None),
        (of("bfloat16", 4), np.full(4, 7), "constant"),
        (of("|u1", 4), np.full(4, 255), None),
        (of("<i8", 4), np.full(4, -1), None),
        (of("|b1", 4), np.ones(4), None),
        (of("<u2", 2), np.array([0x7C00, 0xFFFF]), None),
        (of("bfloat16", 2), np.array([1, np.inf]), "infinite"),
        (of("bfloat16", 2), np.array([np.nan, np.inf]), "nan"),
        (of("<f4", "any", 2, encoder=None), np.array([[1, np.nan]]), "nan"),
    ],
)
def test_values_are_judged_by_their_component(
    component: Component, array: Array, fault: str | None
) -> None:
    fd = on_disk(saved(stored(array, component)))
    size, shape = content.check(fd, component)
    if fault is None:
        check_values(fd, size, shape, component)
    else:
        with pytest.raises(BadArrayError, match=fault):
            check_values(fd, size, shape, component)


def test_pictures_are_written_as_they_are_beside_arrays(tmp_path: Path) -> None:
    longest = tmp_path / ("x" * 250 + ".webp")
    write_arrays([(longest, b"RIFF"), (tmp_path / "a.b.npy", np.ones(3, "<f4"))])
    assert contents(tmp_path) == {longest.name: b"RIFF", "a.b.npy": saved(np.ones(3, "<f4"))}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
