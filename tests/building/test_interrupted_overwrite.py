"""What verify says after an interrupted overwrite: old shards stay until they are replaced."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from shardwright import verify
from shardwright.storage.files import using
from tests.building.builds import build, interrupt, records, tars, write_recipe
from tests.commands import run
from tests.derive.pictures import make_images
from tests.faults import Call, Killed, KillingDisk, WatchedDisk

pytestmark = pytest.mark.timeout(600)

SIZE = ((96, 64),)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", 9, SIZE)


@pytest.fixture
def output(images: Path, tmp_path: Path) -> Path:
    build(images, tmp_path / "out", shard_size=2)
    return tmp_path / "out"


def test_old_shards_are_complete_after_an_interrupted_overwrite_and_verify_says_how_to_finish_it(
    images: Path, output: Path, tmp_path: Path
) -> None:
    before = tars(output)
    interrupt(images, output, 2, overwrite=True, shard_size=3, shuffle=True, seed=5)
    assert tars(output) == before
    for flags in ([], ["--read-data"], ["--against", images]):
        done = run("verify", output, *flags)
        assert done.returncode == 0, done.stdout
        assert done.stdout.startswith(
            "unfinished: 1 (warning)\n"
            "  .shardwright/unfinished.json: a build with --overwrite was interrupted, or is still "
            "active, and the shards of the last run are still there; if none is active, run the "
            "same shardwright build again with --overwrite --shuffle --seed 5 --shard-size 3\n"
        )
        assert f"\n{output}: OK: " in done.stdout
    again = ("build", images, "-o", output, "--recipe", write_recipe(tmp_path), "--overwrite")
    done = run(*again, "--shuffle", "--seed", "5", "--shard-size", "3", "--encoders", "sketch")
    assert done.returncode == 0, done.stderr
    assert "2 of 3 shards finished before; continuing" in done.stderr
    assert len(records(output)) == 9
    assert run("verify", output).stdout.startswith(f"{output}: OK: ")


def test_damage_of_old_shards_is_found_after_an_interrupted_overwrite(
    images: Path, output: Path
) -> None:
    interrupt(images, output, 1, overwrite=True, shard_size=3)
    first, second, *_ = sorted(output.glob("bucket_*/*.tar"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    second.unlink()
    report = verify(output, read_data=True, workers=1)
    kinds = {finding.kind for finding in report.findings if finding.damage}
    assert kinds == {"differs", "data_differs", "missing"}


class _KilledAtTheFirstMove(WatchedDisk):
    """Kills the process when the first new shard gets its name."""

    def before(self, call: Call) -> None:
        if call.name == "rename" and call.path.endswith("out/bucket_96x64/shard-000000.tar"):
            raise Killed(str(call))


def test_an_overwrite_that_has_begun_to_replace_shards_is_damage_until_it_is_finished(
    images: Path, output: Path
) -> None:
    with using(_KilledAtTheFirstMove()), pytest.raises(Killed):
        build(images, output, overwrite=True, shard_size=3)
    done = run("verify", output)
    assert done.returncode == 12
    assert (
        "a build with --overwrite was interrupted, or is still active; if none is active, run the "
        "same shardwright build again with --overwrite --shard-size 3\n"
    ) in done.stdout
    build(images, output, overwrite=True, shard_size=3)
    assert verify(output, read_data=True, workers=1).findings == []


def test_wherever_an_overwrite_is_killed_shards_without_damage_are_all_old_or_all_new(
    tmp_path: Path,
) -> None:
    images, folder = make_images(tmp_path / "few", 3, SIZE), tmp_path / "killed/out"
    for name, size in (("old", 2), ("new", 4)):
        build(images, tmp_path / name, shard_size=size)
    old, new = tars(tmp_path / "old"), tars(tmp_path / "new")
    seen, at = list[dict[str, bytes]](), 0
    while True:
        at += 1
        shutil.copytree(tmp_path / "old", folder)
        with using(KillingDisk(at)), suppress(Killed):
            build(images, folder, overwrite=True, shard_size=4)
            break
        if not verify(folder, read_data=True, workers=1).damaged:
            seen.append(tars(folder))
        shutil.rmtree(folder)
    assert [each for each in seen if each not in (old, new)] == []
    assert (old in seen, new in seen) == (True, True)


def test_shards_are_complete_after_an_interrupted_append(images: Path, output: Path) -> None:
    make_images(images, 14, SIZE)
    interrupt(images, output, 1, append=True, shard_size=2)
    done = run("verify", output, "--read-data")
    assert done.returncode == 0, done.stdout
    assert "unfinished: 1 (warning)\n" in done.stdout
    assert "if none is active, run the same shardwright build again\n" in done.stdout
