"""``shardwright demo``: the flow on made-up data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests import commands
from tests.tars import all_ids, digests, listing, shards


def test_the_demo_works_in_an_empty_folder_and_again_in_its_own(tmp_path: Path) -> None:
    done = commands.run("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["shardwright-demo"]
    output = tmp_path / "shardwright-demo" / "shards"
    found = all_ids(output)
    assert len(found) == len(set(found)) == 24
    assert len({path.parent for path in shards(output)}) == 5
    assert "4. shardwright-demo/derived: OK: no damage" in done.stdout
    assert "5. shardwright-demo/shards: OK: no damage\n  8 shards" in done.stdout
    assert "6. read back all 24 samples" in done.stdout
    assert "7. wrote a page with what is in it: shardwright-demo/report.html\n" in done.stdout
    page = (tmp_path / "shardwright-demo" / "report.html").read_text()
    assert page.count("<img ") == 24
    assert "1 caption is cut off: longer than t5 reads" in page
    assert "  pip install '.[encode]'  " in done.stdout
    assert "shardwright[" not in done.stdout  # which is on no index
    for path in shards(output):
        assert path.name in done.stdout
        assert f"{path.stat().st_size:,}" in done.stdout
    before = digests(output)
    again = commands.run("demo", "--json", cwd=tmp_path)
    assert again.returncode == 0
    store, packed = json.loads(again.stdout)["verified"]
    assert (store["checked"], store["read_data"]) == ({"records": 24, "arrays": 72}, True)
    assert (packed["checked"], packed["read_data"]) == ({"shards": 8, "samples": 24}, True)
    assert digests(output) == before
    derived = output.parent / "derived"
    lines = (derived / "approved_image_dataset.jsonl").read_text().splitlines()
    for record in map(json.loads, lines[:4]):
        latent = np.load(derived / "vae_latents" / f"{record['image_id']}.npy")
        assert latent.shape == (16, record["height"] // 8, record["width"] // 8)
        assert record["aspect_bucket"] == f"{record['width']}x{record['height']}"


def test_the_demo_refuses_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    done = commands.run("demo", tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert "is not empty; give a new folder" in done.stderr
    assert listing(tmp_path) == ["precious"]


def test_the_demo_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = commands.run("demo", tmp_path / "file")
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path}/file: is not a folder; give another to write to\n"
    assert (tmp_path / "file").read_text() == "mine"
