"""What README says first works as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardwright
from tests.commands import run
from tests.derive.pictures import make_images

README = (Path(__file__).parent.parent / "README.md").read_text()


def commands_of_the_flow() -> list[str]:
    section = README.split("## The flow")[1].split("|")[0]
    return re.findall(r"`(shardwright [^`]+)`", section)


def python_of_the_loader() -> str:
    return README.split("## Load it")[1].split("```python\n")[1].split("```")[0]


def test_the_flow_leads_to_batches(tmp_path: Path) -> None:
    make_images(tmp_path / "data/approved", 17, ((80, 80), (96, 90), (64, 70)))
    commands = commands_of_the_flow()
    assert commands == ["shardwright derive --fit bucket", "shardwright pack"]
    for command in commands:
        given = ["--encoders", "sketch"] if " derive" in command else []
        done = run(*command.split()[1:], *given, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    code = python_of_the_loader() + "    print(batch['vae.npy'].shape)\n"
    read = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert read.stdout == "(16, 16, 128, 128)\n", read.stderr


def test_the_loader_names_the_way_out_of_latents_that_do_not_stack(tmp_path: Path) -> None:
    make_images(tmp_path / "data/approved", 4, ((80, 80), (96, 90)))
    store = ["--encoders", "sketch"]
    assert run("derive", *store, cwd=tmp_path).returncode == 0
    assert run("pack", cwd=tmp_path).returncode == 0
    dataset = shardwright.open(tmp_path / "data/shards")
    with pytest.raises(shardwright.UsageError) as caught:
        dataset.batches(2)
    assert str(caught.value) == (
        "bucket 1024x1024: 2 of its 4 vae.npy differ in size from the others; a batch needs one "
        "shape a bucket: with the flags of your store, run shardwright derive --fit bucket "
        "--recompute vae, then shardwright pack --overwrite --output-dir "
        f"{tmp_path}/data/shards"
    )
    derive, pack = re.findall(r"shardwright ((?:derive|pack)[^,]+)", str(caught.value))
    assert run(*derive.split(), *store, cwd=tmp_path).returncode == 0
    assert run(*pack.split(), cwd=tmp_path).returncode == 0
    assert len(list(shardwright.open(tmp_path / "data/shards").batches(2))) == 2
