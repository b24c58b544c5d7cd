"""Decoding in other processes: what comes back, who dies, and what is left."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from pathlib import Path

import numpy as np
import pytest

from shardwright.deriving import decoders
from shardwright.deriving.decoders import Decoders, Heads, children_for, copies_for
from shardwright.deriving.images import BadImageError
from shardwright.deriving.views import View
from shardwright.encoders.base import Pixels, Preprocessing
from shardwright.engine.local import cores
from shardwright.errors import ShardwrightError
from tests.commands import children, is_alive, wait_until
from tests.derive import decoding
from tests.derive.pictures import gradient, make_images, save, sketch, store_records
from tests.faults import contents

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    before = children(os.getpid()), len(os.listdir("/proc/self/fd"))
    yield
    assert (children(os.getpid()), len(os.listdir("/proc/self/fd"))) == before


def test_arrays_come_back_as_they_were_made() -> None:
    here = decoding.several(None)
    with Decoders(decoding.several, 1) as decode:
        there = decode(None)
    assert there.keys() == here.keys()
    for name, array in here.items():
        assert np.array_equal(there[name], array), name
        if name != "file":
            assert there[name].dtype == array.dtype, name
    assert not there["fixed"].flags.writeable
    assert there["free"].flags.writeable
    assert there["file"] == b"\xff\xd8"


def test_an_array_stays_as_it_is_when_the_next_one_comes() -> None:
    with Decoders(decoding.pixels, 1) as decode:
        first = decode((64, 64, 3))
        decode((80, 80, 3))[:] = 0
    assert np.array_equal(first, decoding.pixels((64, 64, 3)))


def test_the_room_of_a_huge_picture_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "_KEPT", 4096)
    with Decoders(decoding.pixels, 1) as decode:
        [child] = decode._children
        for shape in ((60, 50, 3), (600, 500, 3), (60, 50, 3)):
            assert np.array_equal(decode(shape), decoding.pixels(shape))
            assert os.fstat(child.arena).st_size <= 4096


def test_an_array_that_takes_several_calls_to_move_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoders, "_AT_ONCE", 1000)
    with Decoders(decoding.pixels, 1) as decode:
        assert np.array_equal(decode((60, 50, 3)), decoding.pixels((60, 50, 3)))


def test_no_array_passes_through_the_connection_or_a_shared_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: list[bytes] = []
    loads = pickle.loads

    def watch(data: bytes) -> object:
        received.append(bytes(data))
        return loads(data)

    def shared() -> list[str]:
        # Only what this process maps: other tests use that folder at the same time.
        maps = Path("/proc/self/maps").read_text().splitlines()
        return sorted({line.split()[5] for line in maps if "/dev/shm/" in line})

    before = shared()
    with Decoders(decoding.pixels, 1) as decode:
        monkeypatch.setattr(connection._ForkingPickler, "loads", watch)  # type: ignore[attr-defined]
        decode((1000, 1000, 3))
        assert shared() == before
    assert received
    assert sum(map(len, received)) < 100


def test_each_child_is_another_process_and_threads_share_them() -> None:
    with Decoders(decoding.who, 2) as decode, ThreadPoolExecutor(3) as pool:
        found = set(pool.map(decode, range(20)))
        assert found <= set(children(os.getpid()))  # other tests have some too
    assert len(found) == 2


def test_without_children_the_function_is_called_here() -> None:
    with Decoders(decoding.who, 0) as decode:
        assert decode(None) == os.getpid()


def test_few_images_are_not_worth_a_process() -> None:
    assert [children_for(count, 64) for count in (0, 63, 64, 2047)] == [0, 0, 2, 63]
    assert children_for(2048, 64) == children_for(10**9, 64) == 64
    assert children_for(10**9, 1) == 0


def test_a_few_copies_of_the_process_decode_few_images() -> None:
    assert [copies_for(count, 64) for count in (0, 1, 7, 8, 63)] == [0, 1, 1, 2, 8]
    assert copies_for(63, 2) == 2
    with Decoders(decoding.who, 1, copied=True) as decode, Heads() as measure:
        assert decode(None) in children(os.getpid())
        for place in ("no such file", "no such file either"):
            with pytest.raises(BadImageError, match="unreadable"):
                measure(place)


def test_a_child_has_no_torch_and_no_threads() -> None:
    with Decoders(decoding.loaded, 1) as decode:
        found = decode(None)
    assert {"PIL", "numpy", "shardwright"} <= found
    assert found.isdisjoint({"torch", "transformers", "diffusers"})
    with Decoders(decoding.threads, 1) as decode:
        assert decode(None) == 1


def test_a_child_holds_its_own_connection_and_arena_only() -> None:
    with Decoders(decoding.descriptors, 2) as decode:
        ours = set(decoding.descriptors(None).values())
        first, second = (set(decode(None).values()) for _ in range(2))
    shared = {name for name in first & second if name.startswith(("/memfd", "socket"))}
    assert shared == {"/memfd:shardwright (deleted)"}
    assert not any(name.startswith("socket") for name in ours & (first | second))


def test_pillow_is_as_strict_in_a_child() -> None:
    with Decoders(decoding.strictness, 1) as decode:
        assert decode(None) == (False, True)


class TestErrors:
    def test_what_the_function_raises_is_raised_here(self) -> None:
        with Decoders(decoding.misbehave, 1) as decode:
            with pytest.raises(BadImageError) as caught:
                decode("bad image")
            assert caught.value.args == ("broken_image", "cut off")
            assert "in misbehave" in str(caught.value.__cause__)
            assert decode("well") == "well"

    def test_what_cannot_be_sent_is_an_error_of_that_call(self) -> None:
        with Decoders(decoding.misbehave, 1) as decode:
            with pytest.raises(ShardwrightError, match=r"ValueError: \('said'"):
                decode("unsendable error")
            with pytest.raises(Exception, match="pickle"):
                decode("unsendable result")
            assert decode("well") == "well"

    @pytest.mark.parametrize(
        ("how", "detail"),
        [
            ("segfault", "the process that read it died by signal 11 (Segmentation fault), twice"),
            ("exit", "the process that read it ended with exit code 7, twice"),
        ],
    )
    def test_a_child_that_dies_costs_its_image_only(self, how: str, detail: str) -> None:
        with Decoders(decoding.misbehave, 1) as decode:
            assert decode("well") == "well"
            with pytest.raises(BadImageError) as caught:
                decode(how)
            assert caught.value.args == ("decoder_died", detail)
            assert decode("well") == "well"

    def test_a_child_that_is_killed_costs_no_image(self, tmp_path: Path) -> None:
        with Decoders(decoding.die_once, 1) as decode:
            assert decode(str(tmp_path / "died")) == "well"
        assert (tmp_path / "died").exists()

    def test_what_a_child_cannot_load_is_an_error_of_that_call(self) -> None:
        with Decoders(decoding.give, 1) as decode:
            for _ in range(2):
                with pytest.raises(ShardwrightError, match=r"in another process .*no_such"):
                    decode(decoding.Unimportable())

    def test_what_a_child_prints_does_not_reach_the_output(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with Decoders(decoding.misbehave, 1) as decode:
            assert decode("print") == "print"
        assert capfd.readouterr() == ("", "printed\na warning of libtiff\n")

    def test_what_cannot_be_imported_is_the_cause(self) -> None:
        with (
            Decoders(decoding.Unimportable(), 2) as decode,
            pytest.raises(ShardwrightError, match=r"did not start: .*No module named 'no_such"),
        ):
            decode(None)

    def test_a_child_that_dies_at_its_start_stops_the_run(self) -> None:
        with Decoders(decoding.Deadly(), 1) as decode:
            for _ in range(2):
                with pytest.raises(ShardwrightError, match=r"did not start: it died by signal 6"):
                    decode(None)

    def test_a_broken_installation_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decoders, "__name__", "shardwright.no_such_module")
        with (
            Decoders(decoding.give, 1) as decode,
            pytest.raises(ShardwrightError, match="exit code 1: ModuleNotFoundError: No module"),
        ):
            decode(None)

    def test_limits_that_allow_no_process_are_reported(self) -> None:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), before[1]))
        try:
            with pytest.raises(ShardwrightError, match=r"Too many open files; raise the limits"):
                Decoders(decoding.give, 4).__enter__()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


SCRIPT = """
import sys, threading
sys.path[:0] = {path!r}
from shardwright.deriving.decoders import Decoders
from tests.derive import decoding
from tests.derive.pictures import gradient, make_images, save, sketch, store_records
from tests.faults import contents
with Decoders(decoding.{task}, 2) as decode:
    threading.Thread(target=decode, args=(None,), daemon=True).start()
    try:
        print("ready", flush=True)
        decode(None)
    except BaseException as error:
        print(type(error).__name__, flush=True)
"""


def started(task: str) -> subprocess.Popen[str]:
    code = SCRIPT.format(path=[str(ROOT), str(ROOT / "src")], task=task)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_children_die_with_a_parent_that_is_killed() -> None:
    with started("hang") as process:
        found = children(process.pid)
        assert len(found) == 2
        process.kill()
    wait_until(lambda: not any(map(is_alive, found)))


def test_ctrl_c_is_the_parent_s_to_decide() -> None:
    with started("hang") as process:
        found = children(process.pid)
        wait_until(lambda: all("SigBlk:\t0000000000004003" in status(pid) for pid in found))
        for pid in found:
            os.kill(pid, signal.SIGINT)
        assert all(map(is_alive, found))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=50)[0] == "KeyboardInterrupt\n"
    assert not any(map(is_alive, found))


def test_a_store_is_the_same_whoever_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images(tmp_path / "images", 12)
    (images / "img007.png").write_bytes((images / "img007.png").read_bytes()[:-30])
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'extends = "prx"\ncomponents = ["dinov3", "vae", "t5", "picture"]\n'
        '[component.picture]\nencoder = "picture"\nformat = "jpg"\n'
    )
    here = sketch(images, tmp_path / "here", recipe=recipe)
    monkeypatch.setattr(decoders, "_FEW", 1)
    there = sketch(images, tmp_path / "there", recipe=recipe)
    assert (here.derived, here.failed) == (there.derived, there.failed) == (11, 1)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_an_image_that_kills_its_decoder_is_a_failure_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images(tmp_path / "images", 8)
    monkeypatch.setattr(decoders, "_FEW", 1)
    monkeypatch.setattr("shardwright.deriving.encoding.look", decoding.look_or_die)
    summary = sketch(images, tmp_path / "derived")
    assert (summary.derived, summary.failed) == (7, 1)
    assert summary.failed_by_reason["decoder_died"].example == str(images / "img003.png")
    ids = [record["image_id"] for record in store_records(tmp_path / "derived")]
    assert ids == [f"img{number:03}" for number in range(8) if number != 3]


def test_looking_at_a_picture_for_the_shipped_encoders_needs_no_torch(tmp_path: Path) -> None:
    save(tmp_path / "a.png", gradient(64, 48))
    vision = Preprocessing(24, 24, 2, 1 / 255, [0.5] * 3, [0.5] * 3, rounded=False)
    seen = [View(prepare=Pixels()), View(divisors=(8, 8)), View(prepare=vision)]
    with Decoders(decoding.look_and_list, 1) as decode:
        found = decode(str(tmp_path / "a.png"), seen)
    assert found.isdisjoint({"torch", "transformers", "diffusers"})


DERIVE = """
import sys
sys.path[:0] = {path!r}
from shardwright import derive
from shardwright.deriving import decoders
decoders._FEW = 1
derive({images!r}, derived_dir={derived!r}, encoders="sketch", batch_size=2)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_cut_short_leaves_no_decoder_and_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    """With sizes that take turns, so that pictures are encoded in another order than committed."""
    sizes = ((256, 192), (192, 256), (256, 192), (200, 200), (264, 192))
    images = make_images(tmp_path / "images", 40, sizes)
    derived = tmp_path / "derived"
    path = [str(ROOT), str(ROOT / "src")]
    code = DERIVE.format(path=path, images=str(images), derived=str(derived))
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(list(derived.glob("t5_hidden/*.npy"))) > 4)
        found = children(process.pid)
        assert len(found) == cores() + 1  # which looks at heads
        process.send_signal(number)
    wait_until(lambda: not any(map(is_alive, found)))
    made = len(list(derived.glob("t5_hidden/*.npy")))
    assert made < 40
    sketch(images, derived)
    sketch(images, tmp_path / "unbroken")
    assert contents(derived) == contents(tmp_path / "unbroken")


def status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()
