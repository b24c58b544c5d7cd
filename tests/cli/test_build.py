"""``shardwright build``: flags, output and exit codes."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import shardwright
from shardwright.cli import derive
from shardwright.cli.build import describe
from tests.building import deadly
from tests.building.builds import RECIPE, build, spoil, write_recipe
from tests.commands import run, start, wait_until
from tests.derive import decoding
from tests.derive.pictures import make_images
from tests.faults import contents
from tests.tars import shards

pytestmark = pytest.mark.timeout(600)
PATHS = '[paths]\nimages = "data/approved"\nshards = "data/shards"\n'


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_recipe(tmp_path, RECIPE + PATHS, "shardwright.toml")
    return make_images(tmp_path / "data/approved", 6)


def test_build_needs_no_arguments_in_a_project_folder(images: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    dry = run("build", "--encoders", "sketch", "--shard-size", "1", "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert sorted(tmp_path.rglob("*")) == before, "a dry run writes nothing at all"
    assert dry.stdout.startswith("would build 6 samples into 6 shards (about ")
    assert "  shard-000001.tar" in dry.stdout
    assert "\nspace: about " in dry.stdout
    assert "\ntime: about " in dry.stdout
    assert "6 images: 6 to build into 6 shards, 0 already there, 0 left out\n" in dry.stderr
    done = run("build", "--encoders", "sketch", "--shard-size", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("built 6 samples into 6 shards (")
    assert " in data/shards on cpu [" in done.stdout
    assert "\ninputs: 6\nwritten_samples: 6\nalready_there: 0\nleft_out: 0\n" in done.stdout
    assert len(shards(tmp_path / "data/shards")) == 6
    again = run("build", "--encoders", "sketch", "--shard-size", "1", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == (
        "nothing to build: 6 samples are already in data/shards\n\n"
        "inputs: 6\nwritten_samples: 0\nalready_there: 6\nleft_out: 0\n"
    )


def test_flags_of_build_reach_the_library(images: Path, tmp_path: Path) -> None:
    other = make_images(tmp_path / "other", 2)
    for number in range(2):
        for path in other.glob(f"img00{number}.*"):
            path.rename(other / f"other{number}{path.suffix}")
    recipe = ("--recipe", tmp_path / "shardwright.toml", "--encoders", "sketch", "--json")
    chosen = ("--fit", "bucket", "--shuffle", "--seed", "4", "--limit", "7", "--shard-size", "2")
    output = ("--output-dir", tmp_path / "out", "--split", "val=30%", "--device", "cpu:2")
    done = run("build", images, other, *recipe, *chosen, *output, "--where", "width > 1")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["inputs"], summary["written_samples"]) == (8, 7)
    assert summary["not_chosen"]["--limit"]["count"] == 1
    assert set(summary["parts"]) == {"train", "val"}
    assert summary["components"]["vae"]["fit"] == "bucket"
    assert summary["device"] == "cpu:2"


def test_images_that_fail_give_exit_code_3_and_are_named_in_the_ledger(
    images: Path, tmp_path: Path
) -> None:
    spoil(images, 2)
    done = run("build", "--encoders", "sketch", cwd=tmp_path)
    assert done.returncode == 3
    assert "left_out: 1\n  broken_image: 1 (for example data/approved/img002.jpg)\n" in done.stdout
    assert done.stdout.endswith(
        "1 image left out; data/shards/.shardwright/ledger.jsonl lists each with the reason. Fix "
        "what failed and run it again with --append\n"
    )
    make_images(images, 6)
    (images / "img002.jpg").unlink()
    done = run("build", "--append", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("built 1 sample into 1 shard (")
    assert "\nalready_there: 5\n" in done.stdout
    assert not (tmp_path / "data/shards/.shardwright/ledger.jsonl").exists()


def test_decoding_is_called_the_bottleneck_only_where_the_cores_are_busy(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = shardwright.build(images, output_dir=tmp_path / "quick", encoders="sketch")
    busy = replace(summary, encoder_waited=0.96, cores_used=0.7)
    assert "encoder idle 96%: image decoding is the bottleneck]" in describe(busy)
    monkeypatch.setattr("shardwright.deriving.encoding.look", decoding.look_slowly)
    summary = shardwright.build(images, output_dir=tmp_path / "slow", encoders="sketch")
    assert summary.encoder_waited > 0.5
    assert "bottleneck" not in describe(summary)
    store = shardwright.derive(images, derived_dir=tmp_path / "store", encoders="sketch")
    assert store.encoder_waited > 0.5
    assert "bottleneck" not in derive.describe(store)


def test_if_all_images_fail_the_first_line_says_so(images: Path, tmp_path: Path) -> None:
    for number in range(6):
        spoil(images, number)
    done = run("build", "--encoders", "sketch", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout == (
        "built nothing: all images are left out\n\n"
        "inputs: 6\nwritten_samples: 0\nalready_there: 0\nleft_out: 6\n"
        "  broken_image: 6 (for example data/approved/img000.jpg)\n\n"
        "6 images left out; data/shards/.shardwright/ledger.jsonl lists each with the reason. Fix "
        "what failed and run it again\n"
    )


def test_what_is_not_chosen_is_no_failure_and_no_success(images: Path, tmp_path: Path) -> None:
    done = run("build", "--encoders", "sketch", "--where", "width > 999", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("built nothing: no image is chosen\n\ninputs: 6\n")
    assert "not_chosen: 6\n  width > 999: 6 (for example img000)\n" in done.stdout


def test_exit_codes_of_refusals(images: Path, tmp_path: Path) -> None:
    assert run("build", "nowhere", cwd=tmp_path).returncode == 2
    assert run("build", "--device", "abacus", cwd=tmp_path).returncode == 2
    assert run("build", "--limit", "many", cwd=tmp_path).returncode == 2
    assert not (tmp_path / "data/shards").exists()
    build(images, tmp_path / "data/shards", recipe=tmp_path / "shardwright.toml")
    before = contents(tmp_path / "data/shards")
    done = run("build", "--limit", "3", cwd=tmp_path)
    assert done.returncode == 1
    assert "already exists, so nothing was written; give --append" in done.stderr
    dry = run("build", "--limit", "3", "--dry-run", cwd=tmp_path)
    assert dry.returncode == 1
    assert "the run itself would stop: data/shards/bucket_64x64/shard-000000.tar" in dry.stdout
    assert contents(tmp_path / "data/shards") == before


def test_a_real_interrupt_ends_with_130_and_the_same_command_continues(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 60, ((96, 64),))
    recipe = write_recipe(tmp_path, deadly.RECIPE.replace(":Deadly", ":Slow"), "slow.toml")
    command: list[str | Path] = ["build", images, "--recipe", recipe]
    command += ["--output-dir", tmp_path / "out"]
    command += ["--shard-size", "4", "--batch-size", "2"]
    for device in ("cpu", "cpu:2"):
        process = start(*command, "--device", device)
        commits = tmp_path / "out/.shardwright/build/commits"
        there = len(list(commits.glob("*.json")))
        wait_until(lambda: len(list(commits.glob("*.json"))) > there)  # noqa: B023 - called here
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=150)
        assert process.returncode == 130, errors
        assert errors.endswith("finished; run the same command to continue\n")
        assert "Traceback" not in errors
        assert not shards(tmp_path / "out")
    done = run(*command, "--device", "cpu:2")
    assert done.returncode == 0, done.stderr
    assert " finished before; continuing\n" in done.stderr
    assert "built 60 samples into 15 shards" in done.stdout
    assert " finished before]\n" in done.stdout


def test_a_summary_describes_a_split_and_the_files_of_loaders(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 6)
    text = describe(build(images, tmp_path / "out", split="val=40%"))
    assert "part" in text
    assert "\nval " in text
    summary = build(images, tmp_path / "out", split="val=40%")
    summary.index_commands = ["shardwright index out --for wids"]
    assert describe(summary).endswith(
        "note: files that shardwright index wrote for other loaders belong to the earlier shards; "
        "to update them, run:\n  shardwright index out --for wids"
    )
