"""Signals set a flag, and work stops where it asks for it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest

from shardwright import derive, index, migrate, pack, status, verify
from shardwright.entry import entry
from shardwright.errors import StorageError
from shardwright.interrupts import Terminated, at_once, caught, check, undisturbed
from shardwright.progress import Progress
from shardwright.storage.files import using
from tests.derive.pictures import make_images, sketch, store_records
from tests.faults import Call, WatchedDisk, contents

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers with which a process begins; what a test sets is undone."""
    before = {number: signal.getsignal(number) for number in CODES}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def installed() -> list[object]:
    return [signal.getsignal(number) for number in CODES]


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_waits_for_the_next_check(number: signal.Signals) -> None:
    done = []

    def work() -> None:
        with caught():
            check()
            signal.raise_signal(number)
            done.append("all of it")
            check()
            done.append("never")

    with pytest.raises(KeyboardInterrupt) as raised:
        work()
    assert done == ["all of it"]
    assert getattr(raised.value, "exit_code", 130) == CODES[number]
    assert isinstance(raised.value, Terminated) is (number != signal.SIGINT)


def test_without_a_check_it_is_raised_at_the_end() -> None:
    done = []

    def work() -> None:
        with caught():
            interrupt()
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]


def test_it_is_not_lost_when_the_work_fails() -> None:
    def work() -> None:
        with caught():
            interrupt()
            raise ValueError("at work")

    with pytest.raises(KeyboardInterrupt) as raised:
        work()
    assert isinstance(raised.value.__context__, ValueError)


def test_only_the_first_signal_is_raised_and_nothing_disturbs_the_leaving() -> None:
    done = []

    def work() -> None:
        with caught():
            try:
                interrupt()
                check()
            finally:
                signal.raise_signal(signal.SIGTERM)
                check()
                done.append("tidied up")

    with pytest.raises(KeyboardInterrupt) as raised:
        work()
    assert done == ["tidied up"]
    assert type(raised.value) is KeyboardInterrupt


def test_the_end_of_one_block_within_another_is_no_check() -> None:
    done = []

    def work() -> None:
        with caught():
            with caught():
                interrupt()
                done.append("the inner one")
            done.append("the outer one")
            check()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["the inner one", "the outer one"]


def test_at_once_is_at_once() -> None:
    done = []

    def work() -> None:
        with caught(), at_once():
            interrupt()
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == []


def test_one_that_waits_is_raised_before_anything_is_done_at_once() -> None:
    done = []

    def work() -> None:
        with caught():
            interrupt()
            done.append("begun")
            with at_once():
                done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["begun"]


@pytest.mark.parametrize("error", [ImportError, None], ids=["as a fault of its own", "not at all"])
def test_what_is_raised_at_once_is_not_lost_in_code_that_catches_it(
    error: type[Exception] | None,
) -> None:
    done = []

    def work() -> None:
        with caught():
            with at_once():
                try:
                    interrupt()
                except KeyboardInterrupt:
                    if error is not None:
                        raise error("as code in C would have it") from None
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == []


def test_undisturbed_work_is_finished() -> None:
    done = []

    def work() -> None:
        with caught():
            with undisturbed():
                interrupt()
                check()
                done.append("finished")
            check()
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["finished"]


def test_afterwards_the_handlers_are_those_of_before() -> None:
    before = installed()
    with caught():
        assert not set(before) & set(installed())
    assert installed() == before


def test_after_a_signal_the_next_ctrl_c_kills_until_the_work_has_ended() -> None:
    def work() -> None:
        with caught():
            signal.raise_signal(signal.SIGTERM)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
            check()

    before = installed()
    with pytest.raises(Terminated):
        work()
    assert installed() == before


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with caught():
        signal.raise_signal(signal.SIGHUP)
        check()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_handler_of_the_caller_is_called_and_may_let_the_work_go_on() -> None:
    called = []

    def note(number: int, frame: FrameType | None) -> None:
        called.append(number)

    signal.signal(signal.SIGTERM, note)
    with caught():
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
            check()
    assert called == [signal.SIGTERM] * 2
    assert signal.getsignal(signal.SIGTERM) is note


def test_what_a_handler_of_the_caller_raises_is_raised_by_check() -> None:
    class LateError(Exception):
        pass

    def late(number: int, frame: FrameType | None) -> None:
        raise LateError

    done = []

    def work() -> None:
        with caught():
            signal.raise_signal(signal.SIGTERM)
            done.append("all of it")
            check()

    signal.signal(signal.SIGTERM, late)
    with pytest.raises(LateError):
        work()
    assert done == ["all of it"]


def test_what_a_handler_sets_stays() -> None:
    def last(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    signal.signal(signal.SIGTERM, last)
    with caught():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_in_another_thread_no_handler_is_installed_and_nothing_is_due() -> None:
    def work() -> list[object]:
        with caught(), at_once():
            check()
            return installed()

    def main() -> None:
        with caught(), ThreadPoolExecutor(1) as pool:
            ours = installed()
            interrupt()
            ours[0] = signal.SIG_DFL  # the next Ctrl-C kills
            assert pool.submit(work).result() == ours

    before = installed()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == before
    with pytest.raises(KeyboardInterrupt):
        main()


class Signalling(WatchedDisk):
    """Interrupts the main thread at the first array."""

    def before(self, call: Call) -> None:
        if call.name == "create" and call.path.endswith(".tmp") and "vae" in call.path:
            signal.raise_signal(signal.SIGTERM)


def test_library_callers_get_their_store_merged_and_their_handlers_back(tmp_path: Path) -> None:
    images, derived = make_images(tmp_path / "images", 6), tmp_path / "derived"
    before = installed()
    with using(Signalling()), pytest.raises(Terminated) as raised:
        sketch(images, derived, batch_size=1)
    assert installed() == before
    saved = len(store_records(derived))
    assert 0 < saved < 6
    plural = "images" if saved > 1 else "image"
    note = f"{saved} {plural} saved. Run the same command to continue"
    assert raised.value.__notes__ == [note]
    sketch(images, derived)
    sketch(images, tmp_path / "unbroken")
    assert contents(derived) == contents(tmp_path / "unbroken")


def test_in_a_thread_a_public_function_leaves_signals_alone(tmp_path: Path) -> None:
    before = installed()

    seen: list[list[object]] = []

    class Looking(Progress):
        def phase(self, name: str, total: int, unit: str) -> None:
            seen.append(installed())

    images, progress = make_images(tmp_path / "images", 2), Looking()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(sketch, images, tmp_path / "derived", progress=progress).result()
    assert done.derived == 2
    assert seen
    assert all(handlers == before for handlers in seen)


class Closing(Progress):
    closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_an_entry_closes_the_progress_however_it_ends(error: type[BaseException] | None) -> None:
    @entry
    def work(*, progress: Progress | None = None) -> str:
        if error is not None:
            raise error
        return "done"

    progress = Closing()
    if error is None:
        assert work(progress=progress) == "done"
    else:
        with pytest.raises(error):
            work(progress=progress)
    assert progress.closed == 1


def test_an_entry_gives_an_error_of_the_system_in_our_words() -> None:
    @entry
    def work() -> None:
        raise PermissionError(13, "Permission denied", "captions.csv")

    with pytest.raises(StorageError, match=r"captions\.csv: Permission denied"):
        work()


def test_every_command_is_an_entry() -> None:
    for function in (derive, migrate, status, pack, verify, index):
        assert function.__code__ is entry(function).__code__, function.__name__


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="only Linux has such a file")
@pytest.mark.parametrize("name", ["captions.jsonl", "captions.csv"])
def test_captions_that_cannot_be_read_are_an_error_of_ours(tmp_path: Path, name: str) -> None:
    captions = tmp_path / name
    captions.symlink_to("/proc/self/mem")  # which opens, and whose first byte is an I/O error
    images = make_images(tmp_path / "images", 1)
    with pytest.raises(StorageError, match=f"{captions}: Input/output error"):
        sketch(images, tmp_path / "derived", captions=captions)
