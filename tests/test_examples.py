"""The examples run as they are written, on the demo's shards, and see every sample."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
IDS = {f"demo{number:03}" for number in range(24)}


@pytest.fixture
def shards(demonstrated: Path) -> Path:
    return demonstrated / "shards"


def started(name: str, shards: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / name, str(shards), *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
    )


def run(name: str, shards: Path, *arguments: str) -> str:
    done = started(name, shards, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seen(output: str) -> list[str]:
    return [word for word in output.split() if word.startswith("demo")]


def test_the_example_with_our_reader_resumes_after_an_interruption(
    shards: Path, tmp_path: Path
) -> None:
    whole = run("train_shardwright.py", shards, "--checkpoint", str(tmp_path / "whole"))
    ids = seen(whole)
    assert len(ids) == 48
    assert set(ids[:24]) == set(ids[24:]) == IDS
    assert ids[:24] != ids[24:]
    for stop in (9, 15):  # in both epochs
        checkpoint = ("--checkpoint", str(tmp_path / f"stopped-{stop}"))
        run("train_shardwright.py", shards, *checkpoint, "--stop-after", str(stop))
        rest = run("train_shardwright.py", shards, *checkpoint)
        assert f"going on after step {stop}" in rest
        assert seen(rest) == ids[2 * stop :]


@pytest.mark.skipif(not find_spec("torch"), reason="torch is an extra")
def test_the_example_with_torch_runs(shards: Path) -> None:
    lines = run("train_torch.py", shards).splitlines()
    assert len(lines) == 24
    assert lines[-1].startswith("epoch 1 step 11 ")


@pytest.mark.parametrize(
    ("name", "module"),
    [("train_webdataset.py", "webdataset"), ("train_huggingface.py", "datasets")],
)
def test_examples_with_other_loaders_see_every_sample(shards: Path, name: str, module: str) -> None:
    pytest.importorskip(module)
    ids = seen(run(name, shards))
    assert len(ids) == 24
    assert set(ids) == IDS


@pytest.mark.parametrize(
    ("name", "module", "told"),
    [
        ("train_webdataset.py", "webdataset", "no bucket_* folders there"),
        ("train_huggingface.py", "datasets", "no dataset card there; run shardwright index"),
    ],
)
def test_examples_with_other_loaders_say_what_is_missing(
    tmp_path: Path, name: str, module: str, told: str
) -> None:
    pytest.importorskip(module)
    done = started(name, tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tmp_path}/nowhere: {told}" in done.stderr
