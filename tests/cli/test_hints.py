"""Commands that are recommended do what they promise when they are pasted into a shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import shardwright
from shardwright import pack
from shardwright.layout import JSONL_NAME
from shardwright.storage.files import using
from tests.commands import run
from tests.derive.pictures import array_path, make_images, sketch, store_records
from tests.faults import Killed, KillingDisk, WatchedDisk

SMALL = ((24, 16), (16, 24), (40, 24))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with images where they are looked for by default, and we are in it."""
    make_images(tmp_path / "data/approved", 4, SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with a store where none is looked for by default."""
    sketch(make_images(tmp_path / "my images", 4, SMALL), tmp_path / "my store")
    return tmp_path


def paste(text: str) -> None:
    """Run the command with which a line ends, as a shell reads it."""
    line = next(line for line in text.splitlines() if "shardwright " in line)
    words = line[line.rindex("shardwright ") :].removeprefix("shardwright ").rstrip(")")
    read = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True
    )
    done = run(*os.fsdecode(read.stdout).split("\0")[:-1])
    assert done.returncode == 0, (words, done.stdout, done.stderr)


def paste_next(*flags: str | Path) -> str:
    """Do what ``status`` recommends."""
    told = run("status", *flags).stdout
    (line,) = (line for line in told.splitlines() if line.startswith("next: "))
    paste(line)
    return line.removeprefix("next: ")


def add_image(images: Path, name: str) -> None:
    for suffix in (".png", ".txt"):
        shutil.copy(images / f"img000{suffix}", images / f"{name}{suffix}")


def test_status_leads_from_images_to_verified_shards_and_on(project: Path) -> None:
    assert run("derive", "--encoders", "sketch").returncode == 0
    assert paste_next() == "shardwright pack"
    assert paste_next() == "shardwright verify data/shards --against data/derived"
    add_image(project / "data/approved", "more")
    assert run("derive", "--encoders", "sketch").returncode == 0
    assert paste_next() == "shardwright pack --append"
    assert paste_next() == "shardwright verify data/shards --against data/derived"
    packed = shardwright.status().packed["data/shards"]
    assert (packed.samples, packed.ready, packed.unfinished) == (5, 5, False)


def test_status_recommends_to_append_as_the_shards_were_packed(odd: Path) -> None:
    store, shards = odd / "my store", odd / "my shards"
    pack(derived_dir=store, output_dir=shards / "train", shard_size=2, shuffle=True, seed=5)
    add_image(odd / "my images", "more")
    sketch(odd / "my images", store)
    told = run("status", "--derived-dir", store, "--output-dir", shards).stdout
    assert f"\n  {shards}/train: 4 samples, of them 4 ready in the store\n" in told
    assert told.endswith("\n      (1 ready sample not packed yet)\n")
    assert paste_next("--derived-dir", store, "--output-dir", shards) == shlex.join(
        [
            *("shardwright", "pack", "--derived-dir", str(store)),
            *("--output-dir", f"{shards}/train", "--append"),
            *("--shuffle", "--seed", "5", "--shard-size", "2"),
        ]
    )
    status = shardwright.status(derived_dir=store, output_dir=shards)
    assert status.next_reason == f"every sample is packed in {shards}/train"


def test_status_recommends_a_sync_when_packed_samples_are_outdated(odd: Path) -> None:
    store, shards = odd / "my store", odd / "my shards"
    pack(derived_dir=store, output_dir=shards, shard_size=2)
    jsonl = store / JSONL_NAME
    jsonl.write_bytes(jsonl.read_bytes().replace(b"{", b'{"note":"new",', 1))
    where = ("--derived-dir", store, "--output-dir", shards)
    told = run("status", *where).stdout
    assert f"\n  {shards}: 4 samples, of them 4 ready in the store, 1 outdated\n" in told
    assert f"(1 packed sample in {shards} changed, removed or excluded since)" in told
    assert paste_next(*where).endswith(" --sync")
    assert (
        shardwright.status(derived_dir=store, output_dir=shards).packed[str(shards)].outdated == 0
    )
    assert " verify " in paste_next(*where)


def test_status_recommends_to_resume_as_the_run_began(odd: Path) -> None:
    store, shards = odd / "my store", odd / "my shards"
    options = {"derived_dir": store, "output_dir": shards, "shard_size": 1, "workers": 1}
    with using(KillingDisk(30)), pytest.raises(Killed):
        pack(limit=3, **options)  # type: ignore[arg-type]
    where = ("--derived-dir", store, "--output-dir", shards)
    assert "; unfinished\n" in run("status", *where).stdout
    assert paste_next(*where).endswith(" --resume --limit 3 --shard-size 1")
    assert shardwright.status(derived_dir=store, output_dir=shards).packed[str(shards)].samples == 3


def split(odd: Path) -> tuple[Path, Path]:
    """Split the metadata of a store in two."""
    lines = (odd / "my store" / JSONL_NAME).read_bytes().splitlines(keepends=True)
    parts = odd / "train.jsonl", odd / "validation.jsonl"
    for path, part in zip(parts, (lines[:3], lines[3:]), strict=True):
        path.write_bytes(b"".join(part))
    return parts


def test_status_recommends_to_resume_from_the_file_that_was_being_packed(odd: Path) -> None:
    train, _ = split(odd)
    store, shards = odd / "my store", odd / "my shards"
    with using(KillingDisk(30)), pytest.raises(Killed):
        pack(derived_dir=store, output_dir=shards, jsonl=train, workers=1)
    paste_next("--derived-dir", store, "--output-dir", shards)
    assert shardwright.status(derived_dir=store, output_dir=shards).packed[str(shards)].samples == 3


def test_status_leaves_an_interrupted_run_of_another_store_alone(odd: Path) -> None:
    store, shards = odd / "my store", odd / "shards"
    shutil.copytree(store, odd / "other")
    with using(KillingDisk(30)), pytest.raises(Killed):
        pack(derived_dir=odd / "other", output_dir=shards / "other", workers=1)
    assert paste_next("--derived-dir", store, "--output-dir", shards / "mine")
    status = shardwright.status(derived_dir=store, output_dir=shards)
    assert status.packed[f"{shards}/other"].unfinished
    assert status.next_command == (
        f"shardwright verify {shards}/mine --against {shlex.quote(str(store))}"
    )


def test_a_store_that_was_recomputed_is_not_recommended_to_be_appended(odd: Path) -> None:
    """Another store with the same ids cannot be told from it, so replacing is the user's choice."""
    store, shards = odd / "my store", odd / "shards"
    where = ("--derived-dir", store, "--output-dir", shards)
    pack(derived_dir=store, output_dir=shards, shard_size=2)
    sketch(odd / "my images", store, recompute=["vae"], fit="bucket")
    assert shardwright.status(derived_dir=store, output_dir=shards).next_command is None
    add_image(odd / "my images", "more")
    sketch(odd / "my images", store, fit="bucket")
    status = shardwright.status(derived_dir=store, output_dir=shards)
    assert (status.next_command, status.packed[str(shards)].ready) == (None, 0)
    fix = f"shardwright pack --derived-dir '{store}' --output-dir {shards} --overwrite"
    assert status.next_reason == (
        f"{shards} holds arrays made with other settings (vae: fit was original, now bucket); to "
        f"replace them, run {fix} --shard-size 2"
    )
    (note,) = (
        finding
        for finding in shardwright.verify(shards, against=store).findings
        if finding.kind == "left_out"
    )
    assert note.fix == (
        "the store was made with other settings (vae: fit was original, now bucket); to pack all "
        f"again, run {fix} --shard-size 2"
    )
    paste(run("status", *where).stdout.partition("next: ")[2])
    assert shardwright.verify(shards, against=store).findings == []


@pytest.mark.parametrize(
    "name", ["tab\there 'n\\there", "line\nend", os.fsdecode(b"not \xff UTF-8")]
)
def test_commands_with_paths_that_no_terminal_can_show_can_be_pasted(
    name: str, odd: Path, tmp_path: Path
) -> None:
    store = (odd / "my store").rename(tmp_path / name)
    shards = tmp_path / f"shards {name}"
    where = ("--derived-dir", store, "--output-dir", shards)
    paste_next(*where)
    paste_next(*where)
    told = run("verify", shards, "--loaders").stdout
    paste(next(line for line in told.splitlines() if line.startswith("  wids")))
    assert (shards / ".wids.json").exists()
    told = run("pack", *where, "--overwrite", "--dry-run").stdout
    paste(told)
    assert store_records(store)[0]["crop"]


def test_status_as_json_spells_any_shard_folder(odd: Path) -> None:
    shards = odd / os.fsdecode(b"\xff")
    pack(derived_dir=odd / "my store", output_dir=shards)
    where = ("--derived-dir", odd / "my store", "--output-dir", shards)
    (folder,) = json.loads(run("status", *where, "--json").stdout)["packed"]
    assert folder == f"{odd}/\\udcff"


def test_status_never_recommends_to_add_what_was_held_out(odd: Path) -> None:
    train, validation = split(odd)
    store, shards = odd / "my store", odd / "shards"
    pack(derived_dir=store, jsonl=train, output_dir=shards / "train")
    status = shardwright.status(derived_dir=store, output_dir=shards)
    assert status.next_command is None
    assert status.next_reason == (
        f"1 ready sample not packed yet; whether to add to {shards}/train is your decision"
    )
    assert f"next: {status.next_reason}\n" in (
        run("status", "--derived-dir", store, "--output-dir", shards).stdout
    )
    pack(derived_dir=store, jsonl=validation, output_dir=shards / "validation")
    status = shardwright.status(derived_dir=store, output_dir=shards)
    assert (status.next_command, status.next_reason) == (
        None,
        "every sample is packed, in several folders",
    )
    held = {path: (packed.samples, packed.ready) for path, packed in status.packed.items()}
    assert held == {f"{shards}/train": (3, 3), f"{shards}/validation": (1, 1)}
    paste_next("--derived-dir", store, "--jsonl", train, "--output-dir", shards)


def test_status_recommends_nothing_after_a_trial(odd: Path) -> None:
    store, shards = odd / "my store", odd / "shards"
    pack(derived_dir=store, output_dir=shards, limit=2)
    assert shardwright.status(derived_dir=store, output_dir=shards).next_command is None


def test_status_does_not_recommend_to_pack_among_the_shards_of_another_store(odd: Path) -> None:
    other = make_images(odd / "other images", 1, SMALL)
    (other / "img000.png").rename(other / "other.png")
    (other / "img000.txt").rename(other / "other.txt")
    sketch(other, odd / "other")
    pack(derived_dir=odd / "other", output_dir=odd / "shards")
    status = shardwright.status(derived_dir=odd / "my store", output_dir=odd / "shards")
    assert status.next_command is None
    assert status.next_reason == (
        f"every record is ready, but {odd}/shards holds other shards; pack into another "
        "--output-dir"
    )


def test_status_of_a_store_with_damaged_shards_recommends_to_verify_them(odd: Path) -> None:
    store, shards = odd / "my store", odd / "shards"
    pack(derived_dir=store, output_dir=shards)
    next((shards / ".shardwright/index").rglob("*.idx")).write_bytes(b"")
    status = shardwright.status(derived_dir=store, output_dir=shards)
    assert status.next_command == f"shardwright verify {shards}"
    assert status.next_reason == f"{shards} is damaged"


def test_the_note_on_latents_that_do_not_stack_can_be_pasted(odd: Path) -> None:
    where = ("--derived-dir", odd / "my store", "--output-dir", odd / "shards")
    told = run("pack", *where)
    assert "so they do not stack in a batch" in told.stdout
    paste(told.stdout)
    told = run("pack", *where, "--overwrite")
    assert told.returncode == 0
    assert "stack" not in told.stdout
    assert store_records(odd / "my store")[0]["crop"]


def test_the_note_on_a_journal_can_be_pasted(odd: Path) -> None:
    store = odd / "my store"
    shutil.copy(store / JSONL_NAME, store / f"{JSONL_NAME}.tmp")
    where = ("--derived-dir", store, "--output-dir", odd / "shards", "--dry-run")
    told = run("pack", *where).stdout
    assert "holds records of an interrupted run" in told
    paste(told[told.index("to merge them, run:") :])
    assert not (store / f"{JSONL_NAME}.tmp").exists()


def test_what_a_killed_first_run_left_is_merged_by_the_command_in_the_error(odd: Path) -> None:
    store, whole = odd / "my store", odd / "whole"
    with using(watched := WatchedDisk()):
        sketch(odd / "my images", whole)
    shutil.rmtree(store)
    merged = [call.path.endswith(JSONL_NAME) for call in watched.calls].index(True)
    with using(KillingDisk(merged + 1)), pytest.raises(Killed):
        sketch(odd / "my images", store)
    told = run("pack", "--derived-dir", store)
    assert told.returncode == 2
    paste(told.stderr)
    assert store_records(store) == store_records(whole)


def test_the_fix_of_a_missing_array_can_be_pasted(odd: Path) -> None:
    store = odd / "my store"
    sketch(odd / "my images", store, recompute=["vae"], fit="bucket")
    array_path(store, "vae", "img001").unlink()
    told = run("verify", store)
    assert told.returncode == 12
    paste(told.stdout)
    assert shardwright.verify(store, read_data=True).findings == []


def test_the_fix_of_shards_that_do_not_stack_can_be_pasted(odd: Path) -> None:
    store, shards = odd / "my store", odd / "shards"
    pack(derived_dir=store, output_dir=shards)
    told = run("verify", shards, "--against", store)
    assert told.returncode == 0
    paste(told.stdout)
    pack(derived_dir=store, output_dir=shards, overwrite=True)
    assert shardwright.verify(shards, against=store).findings == []


def test_the_images_are_named_from_any_working_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch(Path("data/approved"), Path("data/derived"))
    array_path(project / "data/derived", "vae", "img001").unlink()
    (project / "elsewhere").mkdir()
    monkeypatch.chdir(project / "elsewhere")
    command = shardwright.status(derived_dir=project / "data/derived").next_command
    assert command == (
        f"shardwright derive {project}/data/approved --derived-dir {project}/data/derived"
    )


def test_a_folder_whose_name_looks_like_a_flag_can_be_pasted(project: Path) -> None:
    sketch(Path("data/approved"), Path("-store"))
    command = shardwright.status(derived_dir="-store").next_command
    assert command == "shardwright pack --derived-dir ./-store"


def test_the_index_that_a_loader_needs_is_named_in_full(odd: Path) -> None:
    shards = odd / "my shards"
    pack(derived_dir=odd / "my store", output_dir=shards)
    told = run("verify", shards, "--loaders").stdout
    paste(next(line for line in told.splitlines() if line.startswith("  wids")))
    assert (shards / ".wids.json").exists()


def test_the_fix_for_batches_that_do_not_stack_can_be_pasted(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 4, ((80, 80), (96, 90)))
    store, shards = tmp_path / "store", tmp_path / "shards"
    sketch(images, store)
    pack(derived_dir=store, output_dir=shards, shard_size=3, shuffle=True)
    with pytest.raises(shardwright.UsageError) as caught:
        shardwright.open(shards).batches(2)
    assert str(caught.value) == (
        "bucket 1024x1024: 2 of 4 vae.npy differ in size; a batch needs one shape per bucket: with "
        "the flags of your store, run shardwright derive --fit bucket --recompute vae, then "
        f"shardwright pack --overwrite --shuffle --shard-size 3 --output-dir {shards}"
    )
    _, derive, repack = str(caught.value).split("shardwright ")
    own = ("--derived-dir", store, "--encoders", "sketch")
    assert run(*derive.removesuffix(", then ").split(), *own, images).returncode == 0
    assert run(*repack.split(), "--derived-dir", store).returncode == 0
    assert len(list(shardwright.open(shards).batches(2))) == 2


def test_the_note_on_latents_that_do_not_stack_gives_both_commands_with_all_flags(
    tmp_path: Path,
) -> None:
    images = make_images(tmp_path / "images", 4, ((80, 80), (96, 90)))
    store, shards = tmp_path / "store", tmp_path / "shards"
    sketch(images, store)
    (tmp_path / "bad.txt").write_text("img000\n")
    flags = ("--exclude-ids-file", tmp_path / "bad.txt", "--shard-size", "2")
    given = ("pack", store, "-o", shards, *flags)
    note = "so they do not stack in a batch; to change that, {}:"
    planned = run(*given, "--dry-run").stdout.splitlines()
    assert any(line.endswith(note.format("first run")) for line in planned)
    told = run(*given).stdout.splitlines()
    at = next(n for n, line in enumerate(told) if line.endswith(note.format("run")))
    _, derive, repack = told[at : at + 3]
    spelt = f"--exclude-ids-file {tmp_path}/bad.txt --shard-size 2"
    start = f"  shardwright pack --derived-dir {store} --output-dir {shards} --overwrite"
    assert repack == f"{start} {spelt}"
    paste(f"{derive} --encoders sketch")
    paste(repack)
    dataset = shardwright.open(shards)
    assert len(dataset) == 3
    assert len(list(dataset.batches(3))) == 1


@pytest.mark.parametrize("fit", ["original", "bucket"])
@pytest.mark.parametrize("command", ["build", "derive"])
def test_nothing_is_said_of_latents_where_only_pictures_have_a_fit(
    tmp_path: Path, command: str, fit: str
) -> None:
    images = make_images(tmp_path / "images", 2, ((80, 80), (96, 90)))
    recipe = tmp_path / "pictures.toml"
    recipe.write_text('components = ["picture"]\n[component.picture]\nencoder = "picture"\n')
    output = {"build": "--output-dir", "derive": "--derived-dir"}[command]
    given = (command, images, "--recipe", recipe, "--encoders", "sketch", "--fit", fit)
    done = run(*given, output, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "latents" not in done.stdout + done.stderr
    if command == "build":  # and they are in one batch, as a list
        (batch,) = shardwright.open(tmp_path / "out").batches(2)
        assert len(batch["picture.jpg"]) == 2


def test_the_fix_for_built_shards_that_do_not_stack_is_a_build(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 4, ((80, 80), (96, 90)))
    given = ("build", images, "--output-dir", tmp_path / "shards", "--encoders", "sketch")
    done = run(*given)
    assert done.stdout.splitlines()[-1] == (
        "fit original: latents keep their picture's size; batches() refuses a bucket with several "
        "sizes (--fit bucket makes all of a bucket stack)"
    )
    with pytest.raises(shardwright.UsageError) as caught:
        shardwright.open(tmp_path / "shards").batches(2)
    assert str(caught.value) == (
        "bucket 1024x1024: 2 of 4 vae.npy differ in size; a batch needs one shape per bucket: "
        f"build {images} again, with the same flags and --fit bucket and --overwrite"
    )
    assert run(*given, "--fit", "bucket", "--overwrite").returncode == 0
    assert len(list(shardwright.open(tmp_path / "shards").batches(2))) == 2


def test_what_is_said_about_a_resolution_works_when_it_is_followed(project: Path) -> None:
    for command in ("build", "derive"):
        refused = run(command, "--encoders", "sketch", "--resolution", "64", cwd=project)
        assert refused.returncode == 2
        assert refused.stderr.splitlines()[-1].endswith(
            "no --resolution here: the recipe has it; in the file that shardwright recipe --init "
            "makes, write resolution = N in place of buckets = [...], and give that file with "
            "--recipe"
        )
    paste("shardwright recipe --init")
    file = project / "shardwright.toml"
    text, count = re.subn(r"buckets = \[[^\]]*\]", "resolution = 64", file.read_text())
    assert count == 1
    file.write_text(text)
    done = run("build", "--encoders", "sketch", "--recipe", file, cwd=project)
    assert done.returncode == 0, done.stderr
    assert "\n64x64 " in done.stdout
