"""Each case prints and leaves what ``expected/`` says, also with more workers, and after kills.

``SHARDWRIGHT_GOLDEN=write`` writes the files instead (``make golden``).
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.durability.soak import SOAK, Tally
from tests.golden import synced
from tests.golden.cases import CASES, LAYOUTS, Case
from tests.golden.relay import Relay, relayed
from tests.golden.steps import Steps
from tests.golden.workshop import HERE, Workshop

EXPECTED = HERE / "expected"
COMMANDS = (
    *("demo", "recipe", "build", "derive", "migrate", "status", "pack", "verify", "look", "index"),
    "completion",
)
WRITE = os.environ.get("SHARDWRIGHT_GOLDEN") == "write"
# In make test there is time for these only, beside all cases of the first layout.
MAIN = ("derive", "update", "pack", "pack-sync", "build", "build-to-url")
MORE = ("prune", "status", "pack-split", "build-from", "verify")
FIRST = LAYOUTS[0]


@pytest.fixture(scope="session")
def relay(request: pytest.FixtureRequest) -> Iterator[Relay]:
    with relayed(request.getfixturevalue("moto")) as relay:
        yield relay


@pytest.fixture(scope="session")
def shops(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Workshop]:
    """A place to work for each layout; a server starts with the first case that needs it."""

    def served() -> Relay:
        found: Relay = request.getfixturevalue("relay")
        return found

    return {name: Workshop(tmp_path_factory.mktemp(name), name, served) for name in LAYOUTS}


def of_cases(choose: Callable[[Case, str], object]) -> pytest.MarkDecorator:
    """Try a test with all cases and layouts of a kind."""
    found = [
        pytest.param(layout, case.name, id=f"{layout}-{case.name}")
        for layout in LAYOUTS
        for case in CASES.values()
        if layout in case.layouts and choose(case, layout)
    ]
    return pytest.mark.parametrize(("layout", "name"), found)


def compare(path: Path, text: str) -> None:
    """Compare with a file of ``expected/``, or write it."""
    if WRITE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return
    before = path.read_text("utf-8") if path.exists() else ""
    if before != text:
        names = (str(path.relative_to(HERE)), "now")
        old, new = (each.splitlines(keepends=True) for each in (before, text))
        found = "".join(difflib.unified_diff(old, new, *names))
        fix = "if that is meant: make golden, and explain each changed line where you describe it"
        pytest.fail(f"users see something else:\n{found}\n{fix}", pytrace=False)


@of_cases(lambda case, layout: SOAK or WRITE or layout == FIRST or case.name in MAIN + MORE)
def test_a_case_prints_and_leaves_what_is_written_down(
    layout: str, name: str, shops: dict[str, Workshop], tally: Tally
) -> None:
    found = shops[layout].result(name)
    compare(EXPECTED / layout / f"{name}.txt", found.text + found.changes)
    tally(
        golden_cases=1, golden_digests=len(re.findall(r"^[+~] [0-9a-f]{64}", found.changes, re.M))
    )


def test_every_expected_file_has_a_case_so_all_that_is_written_down_is_compared() -> None:
    cases = {f"{layout}/{case.name}" for case in CASES.values() for layout in case.layouts}
    found = {str(path.relative_to(EXPECTED).with_suffix("")) for path in EXPECTED.rglob("*.txt")}
    orphans = found - cases - {"public/help", "public/names"}
    if WRITE:
        for name in orphans:
            (EXPECTED / f"{name}.txt").unlink()
    else:
        assert orphans == set()


def test_every_help_text_is_what_is_written_down(shops: dict[str, Workshop]) -> None:
    shop = shops["prx"]
    shop.begin(CASES["derive"])
    with Steps(shop) as steps:
        commands = ["shardwright --help", *(f"shardwright {name} --help" for name in COMMANDS)]
        compare(EXPECTED / "public/help.txt", "".join(map(steps.take, commands)))


def test_every_public_name_is_what_is_written_down(shops: dict[str, Workshop]) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "public.py")],
        env=shops["prx"].environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    compare(EXPECTED / "public/names.txt", done.stdout)


# More workers change nothing.


def same(layout: str, name: str, engine: str, shops: dict[str, Workshop]) -> None:
    expected = shops[layout].result(name)
    found = shops[layout].run(CASES[name], engine)
    codes = [re.findall(r"^exit \d+", text, re.M) for text in (expected.text, found.text)]
    assert codes[0] == codes[1], found.text
    assert found.end == expected.end


@of_cases(
    lambda case, layout: "two" in case.engines and (SOAK or (layout == FIRST and case.name in MAIN))
)
def test_a_case_with_two_workers_leaves_the_same_files(
    layout: str, name: str, shops: dict[str, Workshop]
) -> None:
    same(layout, name, "two", shops)


@pytest.mark.xdist_group("ray")
@of_cases(
    lambda case, layout: "ray" in case.engines and (SOAK or (layout, case.name) == (FIRST, "pack"))
)
def test_a_case_on_ray_leaves_the_same_files(
    layout: str, name: str, shops: dict[str, Workshop]
) -> None:
    same(layout, name, "ray", shops)


# Killed at any point and run again, a command ends as if nothing had been.


@of_cases(
    lambda case, layout: (
        case.again is not None and (SOAK or (layout == FIRST and case.name in MAIN))
    )
)
def test_a_case_that_is_killed_and_run_again_leaves_the_same_files(
    layout: str, name: str, shops: dict[str, Workshop], tally: Tally
) -> None:
    shop, case = shops[layout], CASES[name]
    expected = shop.result(name).end
    words = shop.before_last(case)
    shop.keep("killed")
    count = shop.requests_of(words) if case.url else len(shop.changes_of(words))
    points = min(count, 15 if SOAK else 5)
    for point in range(points):
        shop.restore("killed")
        number = 1 + (count - 1) * point // (points - 1)
        where = f"killed at change {number} of {count}"
        code = shop.kill(words, number, "after" if point % 2 else "before")
        assert code == -signal.SIGKILL, where
        done = shop.finish([*words, *(case.again or "").split()])
        assert done.returncode in (0, 3), f"{where}: {done.stderr}"
        assert shop.tree() == expected, where
    tally(golden_kills=points)


@of_cases(
    lambda case, layout: case.again is not None and not case.url and (SOAK or layout == FIRST)
)
def test_a_case_syncs_files_before_they_get_their_names_and_the_manifest_last(
    layout: str, name: str, shops: dict[str, Workshop]
) -> None:
    shop = shops[layout]
    words = shop.before_last(CASES[name])
    before = shop.tree()
    log = shop.changes_of(words)
    made = {
        path for path, digest in shop.tree(r"(?<!/lock)$").items() if before.get(path) != digest
    }
    paths = [[str(shop.folder / path) for path in each] for each in (before, made)]
    assert synced.losses(log, *paths) == []
