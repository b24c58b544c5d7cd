"""``shardwright pack`` as people and scripts meet it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from shardwright import pack, verify
from tests import commands
from tests.durability.scenarios import small_store, twenty
from tests.stores import Store, line, make_store, record, records


@pytest.fixture
def mixed(tmp_path: Path) -> Store:
    """Five ready samples in two buckets, and two that are not."""
    given = [*records(3), *records(2, "832x1216", "tall"), record("x", caption=""), record("y")]
    store = make_store(tmp_path / "derived", given)
    store.array("vae", "y").unlink()
    return store


def flags(store: Store, output: Path) -> tuple[str | Path, ...]:
    return ("pack", "--derived-dir", store.root, "--output-dir", output)


def test_pack_json_is_exactly_one_object_with_the_named_keys(mixed: Store, output: Path) -> None:
    done = commands.run(*flags(mixed, output), "--json")
    assert done.returncode == 0
    summary = json.loads(done.stdout)  # one value and nothing more
    size = (output / "bucket_832x1216" / "shard-000000.tar").stat().st_size
    expected = {
        "total_records": 7,
        "ready_records": 5,
        "skipped_incomplete": 2,
        "written_samples": 5,
        "written_shards": 2,
        "skipped_by_reason": {
            "caption_invalid": {"count": 1, "example": "x"},
            "vae_missing": {"count": 1, "example": "y"},
        },
        "dry_run": False,
        "output_dir": str(output),
    }
    assert {key: summary[key] for key in expected} == expected
    assert list(summary["buckets"]) == ["832x1216", "1024x1024"]
    tall = summary["buckets"]["832x1216"]
    assert (tall["samples"], tall["shards"], tall["bytes"]) == (2, 1, size)
    assert tall["shard_bytes"] == {"shard-000000.tar": size}


def test_pack_json_is_what_the_function_gives(mixed: Store, output: Path) -> None:
    done = commands.run(*flags(mixed, output), "--json", "--dry-run")
    summary = pack(derived_dir=mixed.root, output_dir=output, dry_run=True).to_dict()
    volatile = {"seconds": 0, "free_bytes": 0}
    assert json.loads(done.stdout) | volatile == summary | volatile


def test_the_pack_summary_lists_buckets_counts_and_reasons(mixed: Store, output: Path) -> None:
    done = commands.run(*flags(mixed, output))
    lines = done.stdout.splitlines()
    assert re.fullmatch(
        rf"packed 5 samples into 2 shards \(.* kB\) in {re.escape(str(output))} \[\d+\.\d s\]",
        lines[0],
    )
    rows = [text.split() for text in lines]
    assert ["bucket", "samples", "shards", "bytes"] in rows
    sizes = [f"{path.stat().st_size:,}" for path in sorted(output.glob("bucket_*/*.tar"))]
    assert ["1024x1024", "3", "1", sizes[0]] in rows
    assert ["832x1216", "2", "1", sizes[1]] in rows
    for expected in (
        "total_records: 7",
        "ready_records: 5",
        "skipped_incomplete: 2",
        "  caption_invalid: 1 (for example x)",
        "  vae_missing: 1 (for example y)",
        "written_samples: 5",
        "written_shards: 2",
    ):
        assert expected in lines


def test_a_dry_pack_says_what_would_happen_and_whether_it_fits(mixed: Store, output: Path) -> None:
    done = commands.run(*flags(mixed, output), "--dry-run")
    assert done.stdout.startswith("would pack 5 samples into 2 shards")
    assert re.search(r"^space: [\d,]+ bytes needed, [\d,]+ free: enough$", done.stdout, re.M)
    assert re.findall(r"shard-\d+\.tar", done.stdout) == ["shard-000000.tar"] * 2


def test_a_dry_pack_ends_as_the_run_would(mixed: Store, output: Path) -> None:
    pack(derived_dir=mixed.root, output_dir=output)
    run = commands.run(*flags(mixed, output))
    reason = run.stderr.splitlines()[-1].removeprefix("error: ")
    dry = commands.run(*flags(mixed, output), "--dry-run")
    assert dry.returncode == run.returncode == 1
    assert dry.stdout.startswith("would pack 5 samples into 2 shards")
    assert dry.stdout.endswith(f"\n\nthe run itself would stop: {reason}\n")
    told = json.loads(commands.run(*flags(mixed, output), "--dry-run", "--json").stdout)
    assert told["obstacle"] == reason
    over = commands.run(*flags(mixed, output), "--dry-run", "--overwrite")
    assert over.returncode == 0
    assert over.stdout.endswith(
        "\n\nnote: would replace 2 shards with new ones of the same name:\n"
        "  bucket_1024x1024/shard-000000.tar\n"
        "  bucket_832x1216/shard-000000.tar\n"
    )


def test_overwrite_with_a_limit_names_every_shard_that_goes(tmp_path: Path, output: Path) -> None:
    """Six shards in six buckets; a limit of five reaches three of them."""
    buckets = ["24x16", "16x24", "32x16", "16x32", "40x16", "16x40"]
    order = [*buckets[:2] * 2, *buckets[2:]]
    given = [record(f"img{number}", bucket) for number, bucket in enumerate(order)]
    store = make_store(tmp_path / "derived", given)
    pack(derived_dir=store.root, output_dir=output)
    shards = {f"bucket_{bucket}/shard-000000.tar" for bucket in buckets}
    stay = {f"bucket_{bucket}/shard-000000.tar" for bucket in buckets[:3]}
    limited = (*flags(store, output), "--limit", "5")

    refused = commands.run(*limited)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == (
        f"error: {output}/bucket_16x24/shard-000000.tar: already exists, so nothing was written; "
        f"give --overwrite, which removes all 6 shards in {output} once the new ones are complete, "
        "or another --output-dir"
    )

    dry = commands.run(*limited, "--overwrite", "--dry-run")
    assert {name for name in shards if name in dry.stdout} == shards
    assert "note: would remove 3 shards:\n" in dry.stdout
    assert "note: would replace 3 shards with new ones of the same name:\n" in dry.stdout
    told = json.loads(commands.run(*limited, "--overwrite", "--dry-run", "--json").stdout)
    assert (set(told["replaced_shards"]), set(told["removed_shards"])) == (stay, shards - stay)

    there = {str(path.relative_to(output)) for path in output.glob("bucket_*/*.tar")}
    assert there == shards
    done = commands.run(*limited, "--overwrite")
    assert "note: removed 3 shards:\n" in done.stdout
    assert "note: replaced 3 shards with new ones of the same name:\n" in done.stdout
    there = {str(path.relative_to(output)) for path in output.glob("bucket_*/*.tar")}
    assert there == stay
    assert {name for name in shards if name in done.stdout} == shards


def test_of_many_shards_that_overwrite_removes_some_are_listed(
    tmp_path: Path, output: Path
) -> None:
    store = make_store(tmp_path / "derived", records(14, "24x16"))
    pack(derived_dir=store.root, output_dir=output, shard_size=1)
    done = commands.run(*flags(store, output), "--overwrite")
    assert "note: removed 13 shards:\n  bucket_24x16/shard-000001.tar\n" in done.stdout
    assert "  bucket_24x16/shard-000010.tar\n  and 3 more (--json lists all)\n" in done.stdout
    pack(derived_dir=store.root, output_dir=output, shard_size=1, overwrite=True)
    done = commands.run(*flags(store, output), "--overwrite", "--json")
    told = json.loads(done.stdout)
    assert told["replaced_shards"] == ["bucket_24x16/shard-000000.tar"]
    assert told["removed_shards"] == [f"bucket_24x16/shard-{n:06}.tar" for n in range(1, 14)]


def test_the_pack_summary_of_one_sample_is_singular(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", records(1))
    packed = commands.run(*flags(store, output))
    assert packed.stdout.startswith("packed 1 sample into 1 shard (")
    assert "shard-000000.tar 1 sample, 1/1 shard (" in packed.stderr
    assert (
        "nothing left to pack: 1 shard " in commands.run(*flags(store, output), "--resume").stdout
    )
    assert "  1 shard, 1 sample (" in commands.run("verify", output).stdout
    assert "  1 record, 3 arrays (" in commands.run("verify", store.root).stdout


@pytest.mark.parametrize("below", ["", "/shards"])
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_an_output_that_cannot_be_a_folder_is_known_before_the_scan(
    below: str, more: list[str], mixed: Store, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    done = commands.run(*flags(mixed, Path(f"{tmp_path}/file{below}")), *more)
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path}/file: is not a folder; give another to write to\n"


def test_progress_goes_to_standard_error_by_lines(tmp_path: Path, output: Path) -> None:
    store = make_store(tmp_path / "derived", [*records(7), record("x", caption="")])
    store.write_lines([b"bad", *map(line, store.records)])
    done = commands.run(
        *flags(store, output), "--progress-every", "3", "--shard-size", "4", "--workers", "1"
    )
    told = [text.partition(" (")[0] for text in done.stderr.splitlines()]
    assert told == [
        f"warning: {store.jsonl}, line 1: not json; skipped",
        "scan: total_records=4 ready_records=3 skipped_incomplete=1",
        "scan: total_records=7 ready_records=6 skipped_incomplete=1",
        "scan: total_records=9 ready_records=7 skipped_incomplete=2",
        "write: bucket_1024x1024/shard-000000.tar 4 samples, 1/2 shards",
        "write: bucket_1024x1024/shard-000001.tar 3 samples, 2/2 shards",
    ]
    assert re.search(r"\(.*/s, .* left\)", done.stderr)


def on_terminal(*arguments: str | Path) -> tuple[int, str, str]:
    """Run with a terminal for standard error; give exit code, output and what the terminal saw."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    try:
        with subprocess.Popen(
            [*commands.COMMAND, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        ) as process:
            os.close(theirs)
            seen = b""
            while chunk := read(ours):
                seen += chunk
            assert process.stdout is not None
            out = process.stdout.read()
    finally:
        os.close(ours)
    return process.returncode, out, seen.decode()


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux's way of saying that the other end is closed
        return b""


def test_a_terminal_gets_a_bar_with_rate_and_time_left(mixed: Store, output: Path) -> None:
    mixed.append(b"bad")
    code, out, seen = on_terminal(*flags(mixed, output), "--json")
    assert code == 0
    assert json.loads(out)["written_samples"] == 5
    assert "\r" in seen
    assert re.search(r"scan: +\d+%\|.*B/s\]", seen)
    assert re.search(r"write: +\d+%\|.*\[\d\d:\d\d<.*B/s\]", seen)
    assert f"warning: {mixed.jsonl}, line 8: not json; skipped" in seen
    assert "scan: total_records" not in seen


def test_an_error_on_a_terminal_is_one_plain_line(mixed: Store, output: Path) -> None:
    pack(derived_dir=mixed.root, output_dir=output)
    code, _, seen = on_terminal(*flags(mixed, output))
    assert code == 1
    assert seen.splitlines()[-1].startswith("error: ")
    assert "already exists" in seen.splitlines()[-1]


def test_ids_cannot_write_to_the_terminal(tmp_path: Path, output: Path) -> None:
    image_id = "evil\x1b[31m\nwritten_samples: 999"
    store = make_store(tmp_path / "derived", [record(image_id, caption="")])
    done = commands.run(*flags(store, output))
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "written_samples: 999" not in done.stdout.splitlines()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_ids_that_the_terminal_cannot_show_are_no_traceback(
    encoding: str, tmp_path: Path, output: Path
) -> None:
    store = make_store(tmp_path / "derived", [record("日本", caption=""), record("naïve")])
    done = subprocess.run(
        [*commands.COMMAND, *map(str, flags(store, output))],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        timeout=150,
    )
    assert done.returncode == 0
    assert b"written_samples: 1" in done.stdout
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "given", [["--bucket", "832x1216,1024x1024"], ["--bucket", "832x1216", "--bucket", "1024x1024"]]
)
def test_several_buckets_are_given_with_commas_or_one_by_one(
    given: list[str], mixed: Store, output: Path
) -> None:
    wide = make_store(mixed.root, [*mixed.records, record("wide", "1216x832")])
    assert "1216x832" in pack(derived_dir=wide.root, output_dir=output, dry_run=True).buckets
    done = commands.run(*flags(mixed, output), *given, "--json", "--dry-run")
    assert list(json.loads(done.stdout)["buckets"]) == ["832x1216", "1024x1024"]


@pytest.mark.parametrize("given", ["", "832x1216,", ","])
def test_an_empty_bucket_is_wrong_usage_and_not_all_buckets(
    given: str, mixed: Store, output: Path
) -> None:
    done = commands.run(*flags(mixed, output), "--bucket", given)
    assert done.returncode == 2
    assert "not a bucket; write WIDTHxHEIGHT" in done.stderr


def test_pack_notes_records_that_an_interrupted_derive_left(store: Store, output: Path) -> None:
    journal = store.jsonl.with_name(store.jsonl.name + ".tmp")
    journal.write_bytes(b"{}\n")
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output)
    assert done.returncode == 0
    assert f"note: {journal} holds records of an interrupted run" in done.stdout


def test_pack_notes_why_records_were_not_checked(store: Store, output: Path) -> None:
    def noted(*more: str) -> list[str]:
        done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output, *more)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if "not checked" in line]

    assert noted("--dry-run") == []
    assert noted("--dry-run", "--limit", "1") == [
        "note: 6 ready records not checked: 6 over --limit"
    ]
    few = ("--bucket", "832x1216", "--limit", "2")
    assert noted("--dry-run", *few) == [
        "note: 5 ready records not checked: 4 left out, 1 over --limit"
    ]
    assert noted(*few) == ["note: 5 ready records not checked: 4 left out, 1 over --limit"]
    assert noted("--append", "--limit", "4") == [
        "note: 3 ready records not checked: 2 already packed, 1 over --limit"
    ]
    assert noted("--append") == ["note: 6 ready records not checked: 6 already packed"]


def test_a_log_has_twenty_lines_for_any_number_of_shards(tmp_path: Path, output: Path) -> None:
    many = small_store(tmp_path / "many", twenty(90))
    flags = ("--derived-dir", many.root, "--output-dir", output)
    logs = commands.run("pack", *flags, "--shard-size", "1").stderr.splitlines()
    written = [line for line in logs if line.startswith("write: ")]
    assert len(written) == 20
    assert ", 90/90 shards" in written[-1]
    logs = commands.run("verify", output).stderr.splitlines()
    checked = [line for line in logs if line.startswith("verify: ")]
    assert len(checked) == 20
    assert " OK, 90/90 shards" in checked[-1]


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_does_not_stop_the_work(closed: str, store: Store, output: Path) -> None:
    redirect = {"stdout": ">&-", "stderr": "2>&-"}[closed]
    words = f"{sys.executable} -m shardwright pack --derived-dir {store.root} --output-dir {output}"
    done = subprocess.run(f"{words} {redirect}", shell=True, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    report = verify(output, read_data=True, against=store.root)
    assert {finding.kind for finding in report.findings} == {"vae_wrong_size"}  # of our stores


def test_progress_that_cannot_be_written_does_not_stop_the_work(store: Store, output: Path) -> None:
    with open("/dev/full", "w") as full:
        flags = ["pack", "--derived-dir", str(store.root), "--output-dir", str(output)]
        command = [sys.executable, "-m", "shardwright", *flags]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full)
    assert done.returncode == 0
    report = verify(output, against=store.root)
    assert {finding.kind for finding in report.findings} == {"vae_wrong_size"}  # of our stores


def test_a_shortened_flag_is_refused_and_does_not_overwrite(store: Store, output: Path) -> None:
    done = commands.run("pack", "--derived-dir", store.root, "--output-dir", output, "--over")
    assert done.returncode == 2
    assert not os.path.lexists(output)
