"""``shardwright look`` as a user runs it: the page, one sample, the report, the list of copies."""

from __future__ import annotations

import json
import re
import signal
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image

import shardwright
from shardwright import derive, look, pack
from shardwright.cli.main import main
from tests.commands import run, start
from tests.derive.pictures import save
from tests.look.pictures import HOSTILE, LONG, RECIPE, Folders, painted
from tests.store.small import small_store
from tests.tars import all_ids


def digest(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_page_is_served_until_a_signal_and_the_data_stays_as_it_was(
    at: Folders, number: signal.Signals, code: int
) -> None:
    before = digest(at.root)
    process = start("look", at.shards, "--no-browser", "--port", "0")
    assert process.stderr is not None
    said = process.stderr.readline()
    while said and "look at" not in said:
        said = process.stderr.readline()
    found = re.fullmatch(r"look at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", said)
    assert found, said
    with urlopen(f"{found[1]}api/overview", timeout=50) as answer:
        assert json.load(answer)["samples"] == 23
    process.send_signal(number)
    _, rest = process.communicate(timeout=100)
    assert (process.returncode, rest) == (code, "Interrupted\n")
    assert digest(at.root) == before


def test_one_sample_is_printed_with_its_cut_its_members_and_its_record(at: Folders) -> None:
    done = run("look", at.shards, "--id", "long")
    assert done.returncode == 0, done.stderr
    kept, cut = LONG.split(" word76 ")
    assert f"caption: {kept} [t5 cuts off 24 tokens:] word76 {cut}\n" in done.stdout
    assert "long, bucket 64x64\n" in done.stdout
    assert "flags: truncated\n" in done.stdout
    assert "t5 reads 77 tokens\n" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("vae.npy"))
    assert row.split()[1:4] == ["float16", "16x8x8", "2,176"]
    assert "  image_path: " in done.stdout
    sample = json.loads(run("look", at.store, "--id", "long", "--json").stdout)["sample"]
    assert (sample["id"], sample["cuts"][0]["lost"]) == ("long", 24)


def test_the_picture_of_a_sample_is_saved(at: Folders, tmp_path: Path) -> None:
    png = tmp_path / "wide.png"
    done = run("look", at.store, "--id", "wide", "--save", png)
    assert done.stdout.endswith(f"saved its image in {png}\n")
    with Image.open(png) as image:
        assert (image.format, image.size) == ("PNG", (256, 64))
    latent = tmp_path / "latent.png"
    assert look(at.shards, images=at.store, id="wide", save=latent).saved_latent
    with Image.open(latent) as image:
        assert image.size == (96, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such folder; give a store or a shard folder"),
        ([".", "--port", "x"], "argument --port: invalid int value: 'x'"),
        (
            ["."],
            ".: is not a store (no approved_image_dataset.jsonl) and not a shard folder (no .tar); "
            "give the folder that derive, migrate or pack wrote",
        ),
        (["SHARDS", "--save", "x.png"], "--save without --id; name the sample with --id"),
        (
            ["SHARDS", "--id", "none"],
            "SHARDS: --id none: no such sample; give one that is there, for example copy",
        ),
        (
            ["SHARDS", "--id", "copy", "--save", "x.jpg"],
            "x.jpg: --save: not a .png file; name it FILE.png",
        ),
        (["SHARDS", "--report", "x.pdf"], "x.pdf: --report: not an .html file; name it FILE.html"),
        (
            ["SHARDS", "--duplicates", "x.txt"],
            "x.txt: --duplicates: not a .jsonl file; name it FILE.jsonl",
        ),
        (
            ["SHARDS", "--duplicates", "x.jsonl", "--threshold", "0.1"],
            "--threshold is 0.1; give a cosine from 0.8 to 1",
        ),
        (
            ["SHARDS", "--threshold", "0.9"],
            "--threshold without --duplicates; on the page, move the slider",
        ),
        (
            ["SHARDS", "--images", "gone"],
            "gone: --images: no such folder; give the folder that holds the images now",
        ),
        (["SHARDS", "--samples", "9"], "--samples without --report; the page shows all of them"),
        (["nowhere", "--report", "x.pdf"], "x.pdf: --report: not an .html file; name it FILE.html"),
        (
            ["SHARDS", "--compare", "x", "--id", "copy"],
            "--compare with --id; compare on the page, without it",
        ),
    ],
)
def test_wrong_usage_is_one_sentence_with_the_fix(
    at: Folders,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(at.shards) if word == "SHARDS" else word for word in arguments]
    assert main(["look", *words]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(message.replace("SHARDS", str(at.shards))), last


class _Page(HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_report_is_one_page_that_loads_nothing_and_shows_everything(
    at: Folders, tmp_path: Path
) -> None:
    html = tmp_path / "report.html"
    done = run("look", at.shards, "--images", at.images, "--report", html)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"wrote a report with 23 of 23 samples to {html}\nneeds attention:\n"
    )
    assert "  1 caption is cut off: longer than t5 reads\n" in done.stdout
    page = _Page()
    page.feed(html.read_text())
    names = [name for name, _ in page.elements]
    assert "script" not in names
    sources = [each.get("src") or each.get("href") for _, each in page.elements]
    loaded = [source for source in sources if source and not source.startswith("data:image/jpeg;")]
    assert loaded == []
    assert not [name for _, each in page.elements for name in each if name.startswith("on")]
    assert names.count("img") == names.count("figure") == 23
    assert names.count("svg") == 4
    assert HOSTILE in page.text
    assert LONG.split("word75")[0] in page.text
    assert "1 image cropped by more than 25%, up to 62%" in page.text
    assert "2 samples in 1 group are nearly alike" in page.text
    assert html.stat().st_size < 10_000_000


def test_the_report_is_the_same_for_the_same_input_and_has_as_many_samples_as_asked(
    at: Folders, tmp_path: Path
) -> None:
    for name in ("one.html", "two.html"):
        look(at.store, report=tmp_path / name, samples=7)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert (tmp_path / "one.html").read_text().count("<figure>") == 7
    look(at.store, report=tmp_path / "none.html", samples=0)
    assert "<figure>" not in (tmp_path / "none.html").read_text()


def test_copies_are_listed_and_packing_without_them_keeps_one_of_each(
    at: Folders, tmp_path: Path
) -> None:
    listed = tmp_path / "copies.jsonl"
    done = run("look", at.store, "--duplicates", listed, "--threshold", "0.98")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"listed 1 sample of 1 group in {listed}: "
        "0 identical files, 1 nearly alike by dinov3 (cosine 0.98 or more)\n"
        "to leave them out, give it to shardwright pack --exclude-ids-file\n"
        "to keep each group in one part of a split, give it to shardwright pack --split-by\n"
    )
    (line,) = map(json.loads, listed.read_text().splitlines())
    assert (line["image_id"], line["kept"]) == ("img000", "copy")
    assert 0.98 < line["similarity"] <= 1
    pack(derived_dir=at.store, output_dir=tmp_path / "without", exclude_ids_file=listed, workers=1)
    assert set(all_ids(at.shards)) - set(all_ids(tmp_path / "without")) == {"img000"}


def test_of_a_chain_only_those_are_listed_that_resemble_one_that_is_kept(tmp_path: Path) -> None:
    one, two = painted(64, 64, seed=1).astype(float), painted(64, 64, seed=2).astype(float)
    for number in range(12):
        share = number / 11
        mixed = (one * (1 - share) + two * share).round().astype(np.uint8)
        save(tmp_path / "images" / f"mix{number:02}.png", mixed)
        (tmp_path / "images" / f"mix{number:02}.txt").write_text("a mix")
    (tmp_path / "r.toml").write_text(RECIPE)
    store, listed = tmp_path / "store", tmp_path / "copies.jsonl"
    derive(tmp_path / "images", recipe=tmp_path / "r.toml", derived_dir=store, encoders="sketch")
    look(store, duplicates=listed, threshold=0.95)
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    vectors = {path.stem: np.load(path) for path in (store / "dinov3").glob("*.npy")}
    assert cosine(vectors["mix00"], vectors["mix11"]) < 0.9, "a chain"
    out = {line["image_id"] for line in lines}
    assert 0 < len(out) < 11
    for line in lines:
        assert line["kept"] not in out
        true = cosine(vectors[line["image_id"]], vectors[line["kept"]])
        assert line["similarity"] == pytest.approx(true, abs=1e-4)
        assert true >= 0.95 - 1e-6


def cosine(one: Any, two: Any) -> float:  # noqa: ANN401 - arrays
    return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))


def test_nothing_is_written_into_the_data(at: Folders, tmp_path: Path) -> None:
    before = digest(at.root)
    (tmp_path / "link").symlink_to(at.store)
    jsonl = at.store / "approved_image_dataset.jsonl"
    for given in (
        {"duplicates": jsonl},
        {"duplicates": tmp_path / "link" / "copies.jsonl"},
        {"report": at.store / ".shardwright/report.html"},
        {"id": "copy", "save": at.store / "copy.png"},
    ):
        with pytest.raises(shardwright.UsageError, match=r"is inside of .*; give a file outside"):
            look(at.store, **given)
    with pytest.raises(shardwright.InputMissingError, match="--report: no such folder; make it"):
        look(at.store, report=tmp_path / "none/report.html")
    assert digest(at.root) == before


def test_a_report_that_would_be_too_large_is_refused_with_a_number_that_fits(
    at: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardwright.looking.report._LARGEST", 30_000)
    with pytest.raises(shardwright.UsageError, match=r"--samples 23: .*; give at most \d+, so"):
        look(at.shards, images=at.images, report=tmp_path / "x.html", samples=23)
    assert not (tmp_path / "x.html").exists()


def test_a_picture_is_the_same_whatever_the_scale_it_was_decoded_at(tmp_path: Path) -> None:
    from shardwright.deriving import images
    from shardwright.looking.pictures import _upright

    path = tmp_path / "large.jpg"
    Image.fromarray(painted(1001, 803, seed=1)).save(path, quality=95)
    with images.strict():
        whole, small = (_upright(images.read(str(path), scale)) for scale in (1, 8))
    assert small.size == (125, 100)
    assert whole.size == (1001, 803)
    expected = np.asarray(whole.resize(small.size, Image.Resampling.BOX)).astype(int)
    assert np.abs(np.asarray(small).astype(int) - expected).mean() < 2


def test_a_damaged_manifest_is_named_by_the_path_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small_store(tmp_path / "derived")
    shardwright.pack(derived_dir=store.root, output_dir=tmp_path / "shards")
    shardwright.pack(derived_dir=store.root, output_dir=tmp_path / "parts", split="val=50%")
    monkeypatch.chdir(tmp_path)
    for folder, damaged in (("shards", "shards"), ("parts", "parts/val")):
        manifest = Path(damaged) / ".shardwright/manifest.json"
        manifest.write_text(manifest.read_text().replace('"samples"', '"sampled"'))
        for flags in (("--report", "page.html"), ("--duplicates", "copies.jsonl")):
            done = run("look", folder, *flags)
            assert done.stderr.startswith(f"error: {manifest}: is damaged; ")
