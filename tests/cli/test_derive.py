"""``shardwright derive``: flags, output and exit codes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.cli.derive import describe
from shardwright.summary import Count
from tests.commands import run
from tests.derive.pictures import make_images, sketch, store_records
from tests.faults import contents


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "data/approved", 3)


def test_derive_needs_no_arguments_in_a_project_folder(images: Path, tmp_path: Path) -> None:
    done = run("derive", "--encoders", "sketch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("derived 3 images in data/derived on cpu")
    assert [r["image_path"] for r in store_records(tmp_path / "data/derived")] == [
        f"data/approved/img{n:03}.png" for n in range(3)
    ]
    again = run("derive", "--encoders", "sketch", cwd=tmp_path)
    assert again.returncode == 0
    assert again.stdout.startswith("nothing to derive: 3 images are complete")


def test_derive_says_what_the_fit_means_for_batches(images: Path, tmp_path: Path) -> None:
    notes = {
        "original": "fit original: latents keep their picture's size; batches() refuses a bucket "
        "with several sizes (--fit bucket makes all of a bucket stack)",
        "bucket": "fit bucket: latents have their bucket's size; all of a bucket stack in a batch",
    }
    for fit, note in notes.items():
        given = [] if fit == "original" else ["--fit", fit]
        where = ["--derived-dir", f"{tmp_path}/{fit}", "--encoders", "sketch", *given]
        done = run("derive", images, *where)
        assert done.stdout.splitlines()[-1] == note
        assert f"  {note}\n" in done.stderr
        assert "\nfit " not in run("derive", images, *where).stdout  # no latent is made


def test_derive_json_is_one_object_and_failures_exit_with_3(images: Path, tmp_path: Path) -> None:
    (images / "broken.jpg").write_text("not a picture")
    (images / "broken.txt").write_text("broken")
    done = run("derive", images, "--derived-dir", tmp_path / "d", "--encoders", "sketch", "--json")
    assert done.returncode == 3
    summary = json.loads(done.stdout)
    assert (summary["derived"], summary["failed"], summary["images_found"]) == (3, 1, 4)
    assert summary["failed_by_reason"] == {
        "broken_image": {"count": 1, "example": str(images / "broken.jpg")}
    }
    assert summary["components"]["vae"]["settings"]["encoder"] == "sketch"


def test_a_dry_derive_says_what_would_be_made_and_what_it_needs(
    images: Path, tmp_path: Path
) -> None:
    done = run(
        "derive", images, "--derived-dir", tmp_path / "d", "--encoders", "sketch", "--dry-run"
    )
    assert done.returncode == 0
    assert done.stdout.startswith(f"would derive 3 images in {tmp_path}/d on cpu")
    assert "block-dct" in done.stdout
    assert "free: enough" in done.stdout
    assert not (tmp_path / "d").exists()


def test_flags_of_derive_reach_the_library(images: Path, tmp_path: Path) -> None:
    captions = tmp_path / "captions.jsonl"
    captions.write_text('{"file_name": "img001.png", "caption": "from the file"}\n')
    store = ("--derived-dir", tmp_path / "d", "--encoders", "sketch", "--fit", "bucket")
    done = run("derive", images, *store, "--components", "vae, t5", "--captions", captions)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "d/dinov3").iterdir())
    record = store_records(tmp_path / "d")[1]
    assert record["caption"] == "from the file"
    assert record["crop"] == pytest.approx([0, 16 / 13, 64, 96 - 16 / 13])
    done = run(
        "derive", images, *store, "--recompute", "t5", "--components", "t5", "--batch-size", "1"
    )
    assert done.returncode == 0, done.stderr
    assert "derived 3 images" in done.stdout


def test_lists_of_components_take_commas_and_repeats(images: Path, tmp_path: Path) -> None:
    store = ("--derived-dir", tmp_path / "d", "--encoders", "sketch", "--json")
    for given in (["--components", "vae,t5"], ["--components", "vae", "--components", "t5"]):
        done = run("derive", images, *store, *given)
        assert list(json.loads(done.stdout)["components"]) == ["vae", "t5"], done.stderr
    for given in (["--recompute", "t5, vae"], ["--recompute", "t5", "--recompute", "vae"]):
        summary = json.loads(run("derive", images, *store, *given).stdout)
        assert {name: part["made"] for name, part in summary["components"].items()} == {
            "dinov3": 3 if "t5, vae" in given else 0,  # it was left out so far
            "vae": 3,
            "t5": 3,
        }


def test_an_edited_caption_is_counted_in_the_summary(images: Path, tmp_path: Path) -> None:
    store = ("--derived-dir", tmp_path / "d", "--encoders", "sketch")
    run("derive", images, *store)
    (images / "img001.txt").write_text("edited")
    done = run("derive", images, *store, "--dry-run")
    assert "kept_captions: 1 (the new text is not encoded)" in done.stdout
    done = run("derive", images, *store, "--recompute", "t5")
    assert "replaced_captions: 1\n" in done.stdout


def test_a_recompute_with_missing_images_says_how_to_end_it(images: Path, tmp_path: Path) -> None:
    store = ("--derived-dir", tmp_path / "d", "--encoders", "sketch")
    run("derive", images, *store)
    (images / "img001.png").write_bytes(b"broken")
    again = ("derive", images, *store, "--fit", "bucket", "--recompute", "vae")
    done = run(*again)
    assert done.returncode == 3
    assert (
        "1 image has no new vae array, so the old ones stay in use. Fix it and rerun, or add "
        "--drop-failed to continue without it\n"
    ) in done.stdout
    status = run("status", "--derived-dir", tmp_path / "d").stdout
    assert "new arrays of vae: 2 images so far, not in use yet\n" in status
    assert "the recompute of vae is unfinished; --recompute none discards it" in status
    done = run("derive", images, *store, "--recompute", "none")
    assert "discarding the unfinished recompute of vae (2 images)\n" in done.stderr
    run(*again)
    done = run(*again, "--drop-failed")
    assert done.returncode == 3
    assert "stay in use" not in done.stdout
    assert "the new vae arrays are in use; 1 old vae array deleted\n" in done.stdout
    assert len(list((tmp_path / "d/vae_latents").iterdir())) == 2


def test_unused_rows_of_captions_are_reported(images: Path, tmp_path: Path) -> None:
    captions = tmp_path / "captions.jsonl"
    captions.write_text(
        '{"file_name": "nope.png", "caption": "of nothing"}\n'
        '{"file_name": "img000.png", "caption": "the first"}\n'
        '{"file_name": "img000.png", "caption": "the last"}\n'
        '{"file_name": "img001.png", "caption": 5}\n'
        '{"file_name": "img002.png", "caption": " "}\n'
    )
    words = ("--derived-dir", tmp_path / "d", "--encoders", "sketch", "--captions", captions)
    done = run("derive", images, *words, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unused_rows"] == {
        "no_such_image": {"count": 1, "example": "nope.png"},
        "no_caption": {"count": 1, "example": "img002.png"},
        "caption_not_string": {"count": 1, "example": "img001.png"},
        "repeated": {"count": 1, "example": "img000.png"},
    }
    assert f"{captions}: 1 row without an image here, for example nope.png\n" in done.stderr
    assert "1 row without a caption, for example img002.png\n" in done.stderr
    assert "1 row with a caption that is not a string; give one string, for example" in done.stderr
    assert "1 row replaced by a later row of the same image, for example img000.png" in done.stderr
    assert store_records(tmp_path / "d")[0]["caption"] == "the last"
    captions.write_text("")
    done = run("derive", images, *words)
    assert f"{captions}: no captions in this file\n" in done.stderr


def test_captions_that_are_all_lists_are_the_reason_that_images_have_none(
    images: Path, tmp_path: Path
) -> None:
    for path in images.glob("*.txt"):
        path.unlink()
    captions = tmp_path / "captions.jsonl"
    captions.write_text('{"file_name": "img000.png", "caption": ["one", "two"]}\n')
    words = ("--derived-dir", tmp_path / "d", "--encoders", "sketch", "--captions", captions)
    done = run("derive", images, *words)
    assert done.returncode == 2
    assert f"{captions}: 1 row with a list as caption; give one string, for example" in done.stderr


PLUG_IN = """
from PIL import Image, PngImagePlugin
class Stand(PngImagePlugin.PngImageFile):  # a picture of theirs is here a PNG with another head
    format = {name!r}
    def _open(self):
        import io
        self.fp = io.BytesIO(self.fp.read()[{skip}:])
        super()._open()
Image.register_open(Stand.format, Stand, lambda head: head.startswith({head!r}))
def register_heif_opener(): pass
"""


@pytest.mark.parametrize(
    ("module", "name", "suffix", "head"),
    [
        ("pillow_heif", "HEIF", "heic", b"\0\0\0\x18ftypheic"),
        ("pillow_jxl", "JXL", "jxl", b"\0\0\0\x0cJXL \r\n\x87\n"),
    ],
)
def test_an_installed_plug_in_is_used(
    images: Path, tmp_path: Path, module: str, name: str, suffix: str, head: bytes
) -> None:
    picture = images / "img000.png"
    picture.with_suffix(f".{suffix}").write_bytes(head + picture.read_bytes())
    picture.unlink()
    plug_in = tmp_path / f"{module}.py"
    plug_in.write_text("raise ImportError")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    words = ("derive", images, "--derived-dir", tmp_path / "d", "--encoders", "sketch")
    done = run(*words, PYTHONPATH=path)
    assert done.returncode == 3
    assert "images_found: 3\nderived: 2\n" in done.stdout
    assert "format_not_readable: 1" in done.stdout
    plug_in.write_text(PLUG_IN.format(name=name, skip=len(head), head=head))
    done = run(*words, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert len(store_records(tmp_path / "d")) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 2, "nowhere: no such folder"),
        (["data/approved/img000.png"], 2, "img000.png: is a file; give the folder"),
        (["data/approved", "--captions", "data"], 2, "data: is a folder; give --captions a JSONL"),
        (["data/approved", "--model", "vae"], 2, "--model vae: no model; write COMPONENT=ID"),
        (["data/approved", "--components", "clip"], 2, "no such component; choose from dinov3"),
        (["data/approved", "--recompute", "t5,clip"], 2, "--recompute clip: no such component"),
        (["data/approved", "--device", "gpu"], 2, "--device gpu: unknown; choose from auto, cpu"),
        (["data/approved", "--captions", "gone.csv"], 2, "gone.csv: no such file"),
        (["data/approved", "--batch-size", "0"], 2, "--batch-size is 0"),
    ],
)
def test_mistakes_in_derive_are_reported_in_one_line(
    images: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    done = run("derive", *arguments, "--encoders", "sketch", cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.count("\n") <= 2
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "data").rglob("*.npy"))


def test_a_place_where_no_store_can_be_is_refused_before_any_work(
    images: Path, tmp_path: Path
) -> None:
    store = ("--derived-dir", tmp_path / "d", "--encoders", "sketch")
    assert run("derive", images, *store).returncode == 0
    shards = tmp_path / "shards"
    assert run("pack", "--derived-dir", tmp_path / "d", "--output-dir", shards).returncode == 0
    (tmp_path / "file").write_text("")
    before = contents(tmp_path)
    for flag, path, message in (
        ("--derived-dir", shards, f"{shards}: holds shards; give --derived-dir the store"),
        ("--derived-dir", tmp_path / "file", "file: is not a folder; give another to write to"),
        ("--jsonl", tmp_path, f"{tmp_path}: is a folder; give --jsonl the metadata file"),
    ):
        done = run("derive", images, *store, flag, path)
        assert done.returncode == 2
        assert message in done.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize("why", ["--encoders foo: unknown", "no caption"])
def test_a_run_that_never_begins_its_work_leaves_no_trace(
    images: Path, tmp_path: Path, why: str
) -> None:
    if why == "no caption":
        for path in images.glob("*.txt"):
            path.unlink()
    encoders = "sketch" if why == "no caption" else "foo"
    done = run("derive", images, "--derived-dir", tmp_path / "d", "--encoders", encoders)
    assert done.returncode == 2
    assert why in done.stderr
    assert not (tmp_path / "d").exists()


def test_the_images_and_their_store_may_share_a_folder(images: Path, tmp_path: Path) -> None:
    for derived in (3, 0):
        done = run("derive", images, "--derived-dir", images, "--encoders", "sketch", "--json")
        assert json.loads(done.stdout)["derived"] == derived


def test_derive_with_other_settings_is_refused_with_the_fix(images: Path, tmp_path: Path) -> None:
    store = ("--derived-dir", tmp_path / "d", "--encoders", "sketch")
    assert run("derive", images, *store).returncode == 0
    done = run("derive", images, *store, "--fit", "bucket", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == "ProvenanceError"
    assert "fit was original, now bucket" in done.stderr
    assert "--recompute vae" in done.stderr


@pytest.mark.parametrize("there", [False, True])
def test_misspelt_encoders_are_answered_with_the_choices(
    images: Path, tmp_path: Path, there: bool
) -> None:
    if there:
        run("derive", images, "--derived-dir", tmp_path / "d", "--encoders", "sketch")
    done = run("derive", images, "--derived-dir", tmp_path / "d", "--encoders", "skech")
    assert done.returncode == 2
    assert done.stderr == ("error: --encoders skech: unknown; choose from pretrained, sketch\n")


def test_messages_about_one_image_are_in_the_singular(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 1)
    store = ("--derived-dir", tmp_path / "d", "--encoders", "sketch")
    done = run("derive", images, *store)
    assert done.stdout.startswith(f"derived 1 image in {tmp_path}/d on cpu")
    assert "1 image: 1 to derive" in done.stderr
    assert run("derive", images, *store).stdout.startswith(
        "nothing to derive: 1 image is complete\n"
    )
    (images / "img000.txt").write_text("edited")
    done = run("derive", images, *store)
    assert "1 caption changed since it was encoded; keeping the old embedding." in done.stderr
    done = run("derive", images, *store, "--recompute", "t5")
    assert "1 caption changed since it was encoded; encoding the new text" in done.stderr


def test_counts_of_derive_have_thousands_separators(images: Path, tmp_path: Path) -> None:
    many = replace(
        sketch(images, tmp_path / "d", dry_run=True),
        images_found=12345,
        derived=12345,
        already_complete=12345,
        failed=12345,
        kept_captions=12345,
        replaced_captions=12345,
        failed_by_reason={"broken_image": Count(12345, "a.jpg")},
        unapplied_profiles={"profile_not_usable": Count(12345, "b.jpg")},
        unused_rows={"repeated": Count(12345, "c.jpg")},
    )
    assert describe(many).count(": 12,345") == 9
