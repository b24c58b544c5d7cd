"""The example that trains: it continues exactly, alone and in two processes, and refuses well."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardwright
from shardwright.demo import demo
from shardwright.encoders.sketch import decode
from tests.derive.pictures import make_images
from tests.durability.soak import SOAK, Tally
from tests.shapes import colours, said, shape
from tests.shards.test_resealed import reseal

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[1] / "examples"
COUNT, BATCH = 22, 4
SHAPES = ((64, 64), (96, 64), (64, 96))
RECIPE = """\
extends = "{name}"
{first}
[images]
fit = "bucket"
buckets = ["64x64", "96x64", "64x96"]
"""


@pytest.fixture(scope="module")
def train_dit() -> Iterator[ModuleType]:
    sys.path.insert(0, str(EXAMPLES))
    import train_dit

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield train_dit
    torch.set_num_threads(threads)
    sys.path.remove(str(EXAMPLES))


@pytest.fixture
def quick(train_dit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example, which draws in a moment."""
    monkeypatch.setattr(train_dit, "STEPS", 2)
    return train_dit


def built(folder: Path, name: str = "prx", first: str = "", more: str = "") -> Path:
    """Build shards of a few small pictures in three buckets."""
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(name=name, first=first) + more)
    images = make_images(folder / "images", COUNT, SHAPES)
    shards = folder / "shards"
    shardwright.build(images, output_dir=shards, recipe=recipe, encoders="sketch", shard_size=5)
    return shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("train"), more="[component.t5]\ntrim = true\n")


def options(folder: Path, **given: Any) -> argparse.Namespace:  # noqa: ANN401
    small = {"batch_size": BATCH, "width": 32, "depth": 1, "seed": 0, "save_every": 1, "steps": 9}
    paths = {"checkpoint": folder / "model.pt", "grid": folder / "grid.png"}
    return argparse.Namespace(**{**small, **paths, **given})


class StoppedError(Exception):
    pass


class Recorder:
    """Notes the ids and the loss of every batch, and stops before a step."""

    def __init__(self, module: ModuleType, patch: pytest.MonkeyPatch, stop: int = 0) -> None:
        self.seen: list[tuple[list[str], float]] = []
        self.seeds: set[int] = set()
        self._loss_of, self._stop = module.loss_of, stop
        patch.setattr(module, "loss_of", self)

    def __call__(self, model: Any, layout: Any, batch: Any, random: Any) -> Any:  # noqa: ANN401
        if len(self.seen) + 1 == self._stop:
            raise StoppedError
        self.seeds.add(seed_of(random))
        loss = self._loss_of(model, layout, batch, random)
        self.seen.append((batch["image_id"], loss.item()))
        return loss


def seed_of(random: Any) -> int:  # noqa: ANN401 - a generator of torch
    """Give the seed of a generator, of which torch uses 32 bits."""
    return int(random.initial_seed()) & 0xFFFFFFFF


def weights(path: Path) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(path)
    return saved


def assert_same(one: Path, other: Path) -> None:
    """Assert that two checkpoints hold the same, to the bit."""
    a, b = weights(one), weights(other)
    assert a["step"] == b["step"]
    assert a["data"] == b["data"]
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    states = zip(a["optimizer"]["state"].values(), b["optimizer"]["state"].values(), strict=True)
    assert all(torch.equal(x[name], y[name]) for x, y in states for name in x)


def test_training_continues_in_the_middle_of_an_epoch_with_the_very_next_batch(
    quick: ModuleType, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = shardwright.open(shards)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    for folder in (unbroken, broken):
        folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        expected = Recorder(quick, patch)
        quick.train(dataset, options(unbroken))
    epoch = sorted(image_id for ids, _ in expected.seen[:6] for image_id in ids)
    assert epoch == sorted(dataset.column("image_id"))
    found = []
    for stop in (3, 4, 0):  # after two steps, after three more in the next epoch, and never
        with pytest.MonkeyPatch.context() as patch:
            part = Recorder(quick, patch, stop)
            try:
                quick.train(dataset, options(broken))
            except StoppedError:
                assert stop
            found += part.seen
    assert found == expected.seen
    assert_same(unbroken / "model.pt", broken / "model.pt")
    assert (unbroken / "grid.png").read_bytes() == (broken / "grid.png").read_bytes()
    output = capsys.readouterr().out
    assert f"{COUNT} samples, 6 steps an epoch; 5 steps are done" in output
    assert re.search(r"step 9: loss \d\.\d{3}, waited \d+\.\d% for data, 0\.0 min left", output)


def test_every_seed_has_noise_of_its_own(quick: ModuleType, shards: Path, tmp_path: Path) -> None:
    found = []
    for seed in (0, 1):
        with pytest.MonkeyPatch.context() as patch:
            recorder = Recorder(quick, patch)
            given = options(tmp_path, seed=seed, steps=3, checkpoint=tmp_path / f"{seed}.pt")
            quick.train(shardwright.open(shards), given)
        found.append(recorder.seeds)
    assert len(found[0] | found[1]) == 6


RANK = """\
import json, os, pathlib, signal, sys
sys.path.insert(0, {examples!r})
import train_dit
train_dit.STEPS = 2
loss_of, told = train_dit.loss_of, pathlib.Path({folder!r}, "rank" + os.environ["RANK"])
def noted(model, layout, batch, random):
    lines = told.read_text().splitlines() if told.exists() else []
    if len(lines) == {stop}:
        os.kill(os.getpid(), signal.SIGKILL)
    seed = random.initial_seed() & 0xFFFFFFFF
    loss = loss_of(model, layout, batch, random)
    with told.open("a") as file:
        file.write(json.dumps([batch["image_id"], loss.item(), seed]) + "\\n")
    return loss
train_dit.loss_of = noted
train_dit.main()
"""


def run_ranks(folder: Path, shards: Path, stop: int = -1) -> tuple[int, list[list[Any]]]:
    """Train with two ranks, as torchrun starts them; give its exit code, and what they saw."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("rank*"):
        old.unlink()
    script = folder / "train.py"
    script.write_text(RANK.format(examples=str(EXAMPLES), folder=str(folder), stop=stop))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    command += [str(shards), "--steps", "10", "--batch-size", str(BATCH), "--width", "32"]
    command += ["--depth", "1", "--save-every", "1", "--checkpoint", str(folder / "model.pt")]
    command += ["--grid", str(folder / "grid.png")]
    with (folder / "log").open("w") as log:
        done = subprocess.Popen(
            [sys.executable, *command],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            start_new_session=True,
        )
        try:
            code = done.wait(500)
        finally:
            if done.poll() is None:
                os.killpg(done.pid, signal.SIGKILL)
                done.wait()
    files = [folder / f"rank{rank}" for rank in range(2)]
    return code, [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.mark.timeout(600)
def test_two_ranks_share_each_epoch_and_continue_exactly_after_both_are_killed(
    shards: Path, tmp_path: Path
) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    code, expected = run_ranks(unbroken, shards)
    assert code == 0, (unbroken / "log").read_text()
    assert [len(rank) for rank in expected] == [10, 10]
    epoch = [image_id for rank in expected for ids, _, _ in rank[:3] for image_id in ids]
    assert sorted(epoch) == sorted(shardwright.open(shards).column("image_id"))
    assert len({seed for rank in expected for _, _, seed in rank}) == 20, "noise of their own"
    code, before = run_ranks(broken, shards, stop=6)
    assert code != 0
    step = weights(broken / "model.pt")["step"]
    assert step in (5, 6), "one rank may have been killed while the other one saved"
    code, after = run_ranks(broken, shards)
    assert code == 0, (broken / "log").read_text()
    for rank in range(2):
        assert before[rank][:step] + after[rank] == expected[rank]
    assert_same(unbroken / "model.pt", broken / "model.pt")


def test_the_same_loop_trains_on_shards_of_another_recipe(
    quick: ModuleType, shards: Path, tmp_path: Path
) -> None:
    dataset = shardwright.open(built(tmp_path, "sdxl"))
    layout = quick.Layout(dataset)
    assert (layout.channels, layout.widths) == (4, [768, 1280, 1280])
    quick.train(dataset, options(tmp_path, steps=3))
    assert weights(tmp_path / "model.pt")["step"] == 3
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.width > 8 * 64
    with pytest.raises(shardwright.UsageError, match="this state belongs to other batches"):
        quick.train(shardwright.open(shards), options(tmp_path, steps=4))


def test_scale_and_shift_come_from_the_shards(train_dit: ModuleType, tmp_path: Path) -> None:
    shards = built(tmp_path)
    reseal(shards, lambda manifest: put_factors(manifest, 2.0, 0.5))
    dataset = shardwright.open(shards)
    layout = train_dit.Layout(dataset)
    batch = next(iter(dataset.batches(4).torch()))
    expected = (batch["vae.npy"].float() - 0.5) * 2
    assert train_dit.loss_of(lambda *_: expected, layout, batch, torch.Generator()) == 0
    net = train_dit.Transformer(layout, width=32, depth=1)
    drawn = train_dit.draw(net, layout, batch, range(1))
    layout.scale, layout.shift = 1.0, 0.0
    assert torch.allclose(drawn, train_dit.draw(net, layout, batch, range(1)) / 2 + 0.5)


def put_factors(part: Any, scale: float, shift: float) -> None:  # noqa: ANN401 - of a manifest
    """Record other factors, wherever there are some."""
    if isinstance(part, dict) and "scaling_factor" in part:
        part.update(scaling_factor=scale, shift_factor=shift)
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        put_factors(each, scale, shift)


def put_encoder(part: Any, name: str) -> None:  # noqa: ANN401 - of a manifest
    """Record another encoder of the latents."""
    if isinstance(part, dict) and "scaling_factor" in part:
        part["encoder"] = name
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        put_encoder(each, name)


def test_a_dropped_caption_is_the_empty_one_with_its_mask(
    train_dit: ModuleType, shards: Path
) -> None:
    dataset = shardwright.open(shards)
    layout = train_dit.Layout(dataset)
    batch = next(iter(dataset.batches(4).torch()))
    (rows,), mask = layout.text(batch, torch.tensor([True, False, False, True]))
    empty = torch.from_numpy(dataset.empty["t5h.npy"]).float()
    for dropped in (0, 3):
        assert torch.equal(rows[dropped, : len(empty)], empty)
        assert not rows[dropped, len(empty) :].any()
        assert mask[dropped].sum() == dataset.empty["t5m.npy"].sum()
    assert torch.equal(rows[1:3], batch["t5h.npy"][1:3].float())
    assert torch.equal(mask[1:3], batch["t5m.npy"][1:3].bool())


def test_rows_beyond_the_mask_change_nothing(train_dit: ModuleType, shards: Path) -> None:
    dataset = shardwright.open(shards)
    layout = train_dit.Layout(dataset)
    net = train_dit.Transformer(layout, width=32, depth=2)
    for block in net.blocks:  # or no block would change anything yet
        torch.nn.init.normal_(block.modulation.weight)
    batch = next(iter(dataset.batches(4).torch()))
    (rows,), mask = layout.text(batch, torch.tensor([True, False, False, False]))
    assert not mask.all()
    x, t = batch["vae.npy"].float(), torch.full((4,), 0.5)
    expected = net(x, t, [rows], mask)
    hidden, seen = rows.clone(), rows.clone()
    hidden[~mask] += 1
    seen[mask] += 1
    assert torch.equal(net(x, t, [hidden], mask), expected)
    assert not torch.allclose(net(x, t, [seen], mask), expected)


def refusal(train_dit: ModuleType, shards: Path, *words: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train_dit.py", str(shards), "--steps", "1", *words])
        with pytest.raises(SystemExit) as ended:
            train_dit.main()
    return str(ended.value)


def test_shards_that_cannot_be_trained_on_are_refused_with_one_sentence(
    train_dit: ModuleType, tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in ("text", "empty", "stack", "latents", "real")}
    for folder in folders.values():
        folder.mkdir()
    textless = built(folders["text"], first='components = ["vae"]')
    assert refusal(train_dit, textless) == "error: the shards have no text; build them with it"
    latentless = built(folders["latents"], first='components = ["t5"]')
    assert "the shards have no latents with a recorded scaling factor" in refusal(
        train_dit, latentless
    )
    unstacked = folders["stack"] / "shards"
    images = make_images(folders["stack"] / "images", 3, ((64, 64), (128, 128)))
    shardwright.build(images, output_dir=unstacked, encoders="sketch")
    told = refusal(train_dit, unstacked)
    assert "vae.npy differ in size" in told
    assert "--fit bucket" in told
    real = built(folders["real"])
    reseal(real, lambda manifest: put_encoder(manifest, "autoencoder"))
    assert refusal(train_dit, real) == (
        "error: the vae latents are not sketches, so they cannot be drawn here; build the shards "
        "with --encoders sketch, or decode with your VAE in save_grid"
    )
    emptyless = built(folders["empty"])
    reseal(emptyless, lambda manifest: manifest.pop("empty"))  # as an earlier version wrote it
    assert "has no t5h.npy of the empty caption" in refusal(train_dit, emptyless)


def test_a_checkpoint_of_another_model_or_cut_short_is_refused_with_one_sentence(
    quick: ModuleType, shards: Path, tmp_path: Path
) -> None:
    quick.train(shardwright.open(shards), options(tmp_path, steps=1))
    path = tmp_path / "model.pt"
    words = ("--checkpoint", str(path), "--batch-size", str(BATCH), "--depth", "1")
    expected = f"error: {path}: is no checkpoint of this model; give another --checkpoint"
    assert refusal(quick, shards, *words, "--width", "64") == expected
    data = path.read_bytes()
    for contents in (data[: len(data) // 2], b"", b"something else"):
        path.write_bytes(contents)
        assert refusal(quick, shards, *words, "--width", "32") == expected


@pytest.mark.parametrize("words", [("--save-every", "0"), ("--width", "48"), ("--depth", "-1")])
def test_numbers_that_make_no_model_are_refused(
    train_dit: ModuleType, shards: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    assert refusal(train_dit, shards, *words) == "2"
    assert "must be above 0, --width a multiple of 32" in capsys.readouterr().err


def test_a_grid_that_cannot_be_written_is_one_sentence(
    quick: ModuleType, shards: Path, tmp_path: Path
) -> None:
    words = ("--checkpoint", str(tmp_path / "m.pt"), "--width", "32", "--depth", "1")
    told = refusal(quick, shards, *words, "--grid", str(tmp_path / "nowhere/grid.png"))
    assert told.startswith("error: [Errno 2] No such file or directory")


def test_colours_and_shapes_of_the_demo_are_recognised_after_sketching_them(
    demonstrated: Path,
) -> None:
    dataset = shardwright.open(demonstrated / "shards").bucket("832x1216")
    for sample in dataset:
        picture, caption = decode(sample["vae.npy"]), sample["json"]["caption"]
        assert colours(picture) == said(caption)
        assert shape(picture) == caption.split()[2]


@pytest.mark.skipif(not SOAK, reason="trains for five minutes on two cores")
@pytest.mark.timeout(3600)
def test_after_five_minutes_of_training_pictures_have_the_colours_of_their_captions(
    train_dit: ModuleType, tmp_path: Path, tally: Tally
) -> None:
    demo(folder=tmp_path / "demo", recipe=EXAMPLES / "shapes.toml", pictures=1200)
    shards, checkpoint = tmp_path / "demo/shards", tmp_path / "model.pt"
    paths = ["--checkpoint", str(checkpoint), "--grid", str(tmp_path / "grid.png")]
    command = [sys.executable, str(EXAMPLES / "train_dit.py"), str(shards), *paths]
    subprocess.run(command, check=True)
    right, shuffled, shapes = followed(train_dit, shards, checkpoint)
    tally(colours_right_of_64=right, colours_right_of_64_with_shuffled_captions=shuffled)
    tally(shapes_right_of_64=shapes)
    assert right >= 0.8 * 64
    assert shuffled <= 0.1 * 64  # by chance, 1 in 42
    assert shapes >= 0.5 * 64  # by chance, 1 in 3


def followed(train_dit: ModuleType, shards: Path, checkpoint: Path) -> tuple[int, int, int]:
    """Draw 64 captions; count right colours, those of another caption, and right shapes."""
    dataset = shardwright.open(shards)
    layout = train_dit.Layout(dataset)
    net = train_dit.Transformer(layout, width=128, depth=4)
    net.load_state_dict(weights(checkpoint)["model"])
    batch = next(iter(dataset.bucket("128x128").batches(64, seed=1).torch()))
    pictures = [decode(each.numpy()) for each in train_dit.draw(net, layout, batch, range(1))]
    drawn = [colours(picture) for picture in pictures]
    shapes = [caption.split()[2] for caption in batch["caption"]]
    told = [said(caption) for caption in batch["caption"]]
    others = [told[at] for at in np.random.default_rng(0).permutation(64)]
    right, shuffled = (
        sum(a == b for a, b in zip(drawn, each, strict=True)) for each in (told, others)
    )
    return right, shuffled, sum(map(str.__eq__, map(shape, pictures), shapes))
