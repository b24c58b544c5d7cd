"""``shardwright status`` and ``shardwright verify`` as people and scripts meet them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardwright.progress import quantity
from tests.commands import run
from tests.store.small import SmallStore, small_store


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    return small_store(tmp_path / "derived")


def one_object(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def test_status_tells_a_person_everything(store: SmallStore) -> None:
    store.array("t5", "img1").unlink()
    (store.root / "half.npy.tmp").write_bytes(b"")
    done = run("status", "--derived-dir", store.root)
    assert done.returncode == 0
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert f"{store.root}: 4 records, 3 ready, 1 not ready" in done.stdout
    assert "  t5_missing: 1 (for example img1)" in done.stdout
    assert rows["component"] == ["complete", "missing", "invalid", "orphaned", "bytes"]
    assert rows["t5"] == ["3", "1", "0", "0", f"{3 * (128 + 77 * 1024 * 2):,}"]
    assert rows["64x64"][:2] == ["2", "0"]
    assert rows["64x64"][-1] == "█" * 40
    assert rows["96x64"][:2] == ["1", "1"]
    assert rows["96x64"][-1] == "█" * 20 + "░" * 20
    assert f"  {store.root}/half.npy.tmp" in done.stdout
    assert f"next: shardwright derive IMAGES --derived-dir {store.root}" in done.stdout
    assert "Traceback" not in done.stderr


def test_status_draws_plainly_where_blocks_cannot_be_written(store: SmallStore) -> None:
    done = run("status", "--derived-dir", store.root, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "#" * 40 in done.stdout


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_status_keeps_its_bars_within_the_terminal(store: SmallStore, columns: int) -> None:
    done = run("status", "--derived-dir", store.root, COLUMNS=str(columns))
    rows = [line for line in done.stdout.splitlines() if line.startswith(("64x64", "96x64"))]
    assert len(rows) == 2
    assert max(map(len, rows)) <= columns
    assert ("█" in rows[0]) is (columns > 40)  # one of a few blocks would say nothing


def test_status_as_json_is_one_object_with_packs_own_number(
    store: SmallStore, tmp_path: Path
) -> None:
    seen = one_object(run("status", "--derived-dir", store.root, "--json"))
    arguments = ("--derived-dir", store.root, "--output-dir", tmp_path / "shards")
    planned = one_object(run("pack", *arguments, "--dry-run", "--json"))
    assert seen["shard_bytes"] == planned["written_bytes"]
    assert seen["components"]["vae"]["complete"] == 4
    assert seen["next_command"] == f"shardwright pack --derived-dir {store.root}"


def test_status_of_nothing_names_the_fix_and_exits_2(tmp_path: Path) -> None:
    done = run("status", "--derived-dir", tmp_path / "nothing")
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {tmp_path}/nothing: no such folder; give another --derived-dir, or make it with "
        f"shardwright derive IMAGES --derived-dir {tmp_path}/nothing\n"
    )


def test_verify_of_a_small_store_exits_0(store: SmallStore) -> None:
    done = run("verify", store.root, "--read-data")
    assert done.returncode == 0
    assert f"{store.root}: OK: no damage" in done.stdout
    assert "4 records, 12 arrays" in done.stdout
    assert "every byte read" in done.stdout


def test_verify_of_a_damaged_store_exits_12_and_names_file_and_fix(store: SmallStore) -> None:
    path = store.array("vae", "img1")
    path.write_bytes(path.read_bytes()[:-2])
    orphan = store.array("t5", "stranger")
    orphan.write_bytes(b"")
    done = run("verify", store.root)
    assert done.returncode == 12
    assert (
        f"vae_truncated: 1\n  {path}: shorter than its header says; delete the file and run "
        f"shardwright derive IMAGES --derived-dir {store.root}\n"
    ) in done.stdout
    assert f"t5_orphaned: 1 (warning)\n  {orphan}: no record uses it; " in done.stdout
    assert f"{store.root}: DAMAGED: 1 finding, 1 warning" in done.stdout


def test_notes_alone_exit_0(store: SmallStore) -> None:
    (store.root / "dinov3" / "img0.npy.tmp").write_bytes(b"")
    done = run("verify", store.root)
    assert done.returncode == 0
    size = quantity(sum(path.stat().st_size for path in store.root.glob("*/*.npy")), "B")
    verdict = (
        f"OK: structure (records, headers, sizes), 1 warning; {size} not read: add --read-data"
    )
    assert f"{store.root}: {verdict}\n" in done.stdout


def test_verify_lists_twenty_findings_of_a_kind_and_counts_all(tmp_path: Path) -> None:
    store = small_store(tmp_path / "derived", samples=25)
    for number in range(25):
        store.array("dinov3", f"img{number}").unlink()
    done = run("verify", store.root)
    assert done.returncode == 12
    assert "dinov3_missing: 25\n" in done.stdout
    assert done.stdout.count("missing, but a record needs it") == 20
    assert "  and 5 more (--json lists all)" in done.stdout
    report = one_object(run("verify", store.root, "--json"))
    assert report["damaged"] is True
    assert report["counts"] == {"dinov3_missing": 25}
    assert [finding["file"] for finding in report["findings"]] == [
        str(store.array("dinov3", f"img{number}")) for number in range(25)
    ]
    assert report["findings"][0]["fix"] == (
        f"run shardwright derive IMAGES --derived-dir {store.root}"
    )


def test_verify_as_json_can_spell_any_file_name(store: SmallStore) -> None:
    name = os.fsencode(store.root / "t5_hidden") + b"/\xff\n.npy"
    with open(name, "wb"):
        pass
    report = one_object(run("verify", store.root, "--json"))
    assert report["findings"][0]["file"].endswith("/t5_hidden/\\udcff\n.npy")


def test_verify_of_a_folder_of_neither_says_so(tmp_path: Path) -> None:
    (tmp_path / "bucket_64x64").mkdir()
    done = run("verify", tmp_path, "--json")
    assert done.returncode == 2
    assert one_object(done)["error"] == "UsageError"
    assert "not a store" in done.stderr


def test_verify_reports_to_a_log_with_rate_and_time_left(store: SmallStore) -> None:
    done = run("verify", store.root)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("arrays: 4/4 samples, 0 damaged arrays (")
    assert "samples/s" in last
    assert last.endswith("left)")


def test_looking_needs_no_numpy(store: SmallStore) -> None:
    for call in (f"status(derived_dir={str(store.root)!r})", f"verify({str(store.root)!r})"):
        code = f"import sys, shardwright; shardwright.{call}; sys.exit('numpy' in sys.modules)"
        assert (
            subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0
        )
