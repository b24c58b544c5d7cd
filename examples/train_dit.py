"""Trains a small diffusion transformer on shards, and draws captions with it.

    shardwright demo train --recipe examples/shapes.toml --pictures 1200
    python examples/train_dit.py train/shards     # or: torchrun --nproc-per-node 2 examples/...

It takes five minutes on two cores. After a kill, the same command continues at the checkpoint.
Latents x are mixed with noise, ``(1 - t) x + t noise``, and the model guesses x, which tells the
direction to the noise (flow matching). To draw, it follows that back from noise.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody does
from PIL import Image, ImageDraw
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader

import shardwright
from shardwright.encoders.sketch import decode

Batch = dict[str, Any]
PATCH = 2  # numbers of a latent that become one token, down and across
LEARNING_RATE = 2e-3  # rises to it in 100 steps, and falls to zero in the second half
DROPPED = 0.1  # share of captions replaced by the empty one: for classifier-free guidance
GUIDANCE = 4.0  # 1 is the caption alone; more follows it more strictly
STEPS = 30  # from noise to a latent
NOISIER = 3.0  # 1 takes every t alike; more takes more near 1, where the layout is decided


class Layout:
    """What the samples hold. The shards tell; nothing of it is typed in here."""

    def __init__(self, dataset: shardwright.Dataset) -> None:
        latents = [c for c in dataset.components.values() if c.scaling_factor is not None]
        texts = [c for c in dataset.components.values() if c.source == "caption"]
        if not latents or not texts:
            missing = "text" if latents else "latents with a recorded scaling factor"
            raise shardwright.UsageError(f"the shards have no {missing}", fix="build them with it")
        if latents[0].settings.get("encoder") != "sketch":  # only those can be drawn here
            what = f"the {latents[0].name} latents are not sketches, so they cannot be drawn here"
            fix = "build the shards with --encoders sketch, or decode with your VAE in save_grid"
            raise shardwright.UsageError(what, fix=fix)
        self.latent, self.channels = latents[0].suffix, int(latents[0].shape[0])
        self.scale, self.shift = latents[0].scaling_factor or 1, latents[0].shift_factor or 0
        self.masks = {text.suffix: text.mask for text in texts}
        self.widths = [int(text.shape[-1]) for text in texts]
        names = [*self.masks, *filter(None, self.masks.values())]
        self.empty = {name: torch.from_numpy(dataset.empty[name]) for name in names}

    def text(self, batch: Batch, drop: Tensor) -> tuple[list[Tensor], Tensor]:
        """Give all text embeddings, and which rows count; a dropped caption is the empty one."""
        batch = {name: batch[name].clone() for name in self.empty}
        for name, empty in self.empty.items():
            length = min(len(empty), batch[name].shape[1])  # trimmed text may be shorter
            batch[name][drop] = 0
            batch[name][drop, :length] = empty[:length].to(batch[name].dtype)
        rows, masks = [], []
        for name, mask in self.masks.items():
            found = batch[name].float()
            rows.append(found if found.ndim == 3 else found[:, None])  # a vector is one row
            masks.append(batch[mask].bool() if mask else torch.ones(rows[-1].shape[:2]).bool())
        return rows, torch.cat(masks, dim=1)


class Block(nn.Module):  # type: ignore[misc]
    """A look at the neighbours, attention, then a network; the time t scales and shifts both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 32
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width, bias=False)
        nn.init.zeros_(self.modulation.weight)  # so that at first nothing is added

    def forward(self, x: Tensor, moment: Tensor, mask: Tensor, size: torch.Size) -> Tensor:
        text, latent = x.tensor_split([-size.numel()], dim=1)
        latent = latent + self.conv(latent.mT.unflatten(2, size).contiguous()).flatten(2).mT
        x = torch.cat([text, latent], dim=1)
        scale1, shift1, gate1, scale2, shift2, gate2 = self.modulation(moment)[:, None].chunk(6, -1)
        qkv = self.qkv(self.norm(x) * (1 + scale1) + shift1).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + gate1 * self.out(found.transpose(1, 2).flatten(2))
        return x + gate2 * self.down(F.gelu(self.up(self.norm(x) * (1 + scale2) + shift2)))


class Transformer(nn.Module):  # type: ignore[misc]
    """Takes the tokens of text and latent in one row; latents may have any height and width."""

    def __init__(self, layout: Layout, width: int, depth: int) -> None:
        super().__init__()
        self.width, numbers = width, layout.channels * PATCH**2
        self.text_in = nn.ModuleList(nn.Linear(each, width) for each in layout.widths)
        self.time_in = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.patches_in, self.patches_out = nn.Linear(numbers, width), nn.Linear(width, numbers)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, t: Tensor, rows: list[Tensor], mask: Tensor) -> Tensor:
        padded = F.pad(x, (0, -x.shape[3] % PATCH, 0, -x.shape[2] % PATCH))
        patches = F.pixel_unshuffle(padded, PATCH)
        size = patches.shape[2:]
        down, across = (waves(torch.arange(n), self.width // 2) for n in size)
        places = torch.cat(torch.broadcast_tensors(down[:, None], across), dim=-1).flatten(0, 1)
        tokens = [self.patches_in(patches.flatten(2).mT) + places]
        for text_in, text in zip(self.text_in, rows, strict=True):
            tokens.insert(-1, text_in(text) + waves(torch.arange(text.shape[1]), self.width))
        mask = F.pad(mask, (0, size.numel()), value=True)[:, None, None]
        y, moment = torch.cat(tokens, dim=1), self.time_in(waves(1000 * t, self.width))
        for block in self.blocks:
            y = block(y, moment, mask, size)
        y = self.patches_out(self.norm(y[:, -size.numel() :])).mT.unflatten(2, size)
        return F.pixel_shuffle(y, PATCH)[:, :, : x.shape[2], : x.shape[3]]


def waves(places: Tensor, width: int) -> Tensor:
    """Describe numbers by sines and cosines, so that near ones look alike."""
    angles = places[:, None] * 1000 ** -torch.linspace(0, 1, width // 2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def loss_of(model: nn.Module, layout: Layout, batch: Batch, random: torch.Generator) -> Tensor:
    """Compare the direction to the model's guess with the true one."""
    x = (batch[layout.latent].float() - layout.shift) * layout.scale  # as a model expects them
    t, chance = 1 - torch.rand(2, len(x), generator=random)  # never 0
    t, noise = t / (t + (1 - t) / NOISIER), torch.randn(x.shape, generator=random)
    at = t[:, None, None, None]
    mixed = torch.lerp(x, noise, at)
    guessed = model(mixed, t, *layout.text(batch, drop=chance < DROPPED))
    return ((guessed - x) / at.clamp(min=0.3)).square().mean()  # small t must not decide


@torch.no_grad()  # type: ignore[untyped-decorator]
def draw(model: nn.Module, layout: Layout, batch: Batch, seeds: range) -> Tensor:
    """Draw each caption of a batch from the noise of each seed: captions x seeds latents."""
    shape, random = batch[layout.latent].shape, [torch.Generator().manual_seed(n) for n in seeds]
    x = torch.stack(shape[0] * [torch.randn(shape[1:], generator=each) for each in random])
    texts = {name: batch[name].repeat_interleave(len(seeds), dim=0) for name in layout.empty}
    both = [layout.text(texts, drop=torch.full((len(x),), each)) for each in (False, True)]
    times = torch.linspace(1, 0, STEPS + 1)
    for t, then in pairwise(times / (times + (1 - times) / NOISIER)):
        guided, unguided = (model(x, t.expand(len(x)), *text) for text in both)
        x = x + (then - t) / t * (x - unguided - GUIDANCE * (guided - unguided))
    return x / layout.scale + layout.shift


def save_grid(path: Path, captions: list[str], latents: Tensor) -> None:
    """Decode sketched latents, and save them as one picture with a row for each caption."""
    pictures = torch.stack([torch.from_numpy(decode(each.numpy())) for each in latents])
    rows = F.pad(pictures, (0, 0, 0, 4, 0, 4), value=255).unflatten(0, (len(captions), -1))
    lines = F.pad(rows.transpose(1, 2).flatten(2, 3), (0, 0, 240, 0), value=255)
    grid = Image.fromarray(lines.flatten(0, 1).numpy())
    for middle, caption in zip(count(lines.shape[1] // 2, lines.shape[1]), captions):
        ImageDraw.Draw(grid).text((8, middle), caption, "black", anchor="lm", font_size=15)
    grid.save(path)


def endless(batches: Any) -> Iterator[tuple[Batch, float]]:  # noqa: ANN401 - of any loader
    """Read epoch after epoch; give each batch with the seconds that it was waited for."""
    loader = DataLoader(batches, batch_size=None, num_workers=1, persistent_workers=True)
    for epoch in count(batches.epoch):
        batches.set_epoch(epoch)
        began = time.monotonic()
        for batch in loader:
            yield batch, time.monotonic() - began
            began = time.monotonic()


def train(dataset: shardwright.Dataset, options: argparse.Namespace) -> None:
    """Train up to the last step, from the checkpoint if there is one; then draw."""
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    say = print if rank == 0 else lambda *_: None
    layout = Layout(dataset)
    dataset = dataset.fields("json", layout.latent, *layout.empty)  # the rest is not read
    batches = dataset.batches(  # of one bucket each; without drop_last, all samples in an epoch
        options.batch_size, seed=options.seed, rank=rank, world_size=ranks, drop_last=False
    ).torch()
    torch.manual_seed(options.seed)
    net = Transformer(layout, options.width, options.depth)
    optimizer = torch.optim.AdamW(net.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    first, last = 0, options.steps + 1
    if options.checkpoint.exists():
        try:
            first = (saved := torch.load(options.checkpoint))["step"]
            for name, part in {"data": batches, "model": net, "optimizer": optimizer}.items():
                part.load_state_dict(saved[name])
        except (RuntimeError, EOFError, LookupError, UnpicklingError) as error:
            fix, what = "give another --checkpoint", "is no checkpoint of this model"
            raise shardwright.UsageError(what, path=options.checkpoint, fix=fix) from error
    if ranks > 1:
        distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(net) if ranks > 1 else net
    say(f"{len(dataset):,} samples, {len(batches)} steps an epoch; {first:,} steps are done")
    source, waited, began = endless(batches), 0.0, time.monotonic()
    for step in range(first + 1, last):
        batch, wait = next(source)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1, step / 100, 2 - 2 * step / last)
        random = torch.Generator().manual_seed(hash((options.seed, rank, step)))
        loss = loss_of(model, layout, batch, random)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        waited, spent = waited + wait, time.monotonic() - began
        if step % 50 == 0 or step in (first + 1, options.steps):
            left, share = spent / (step - first) * (options.steps - step) / 60, waited / spent
            say(f"step {step:,}: loss {loss:.3f}, waited {share:.1%} for data, {left:.1f} min left")
        if rank == 0 and (step % options.save_every == 0 or step == options.steps):
            saved = {"step": step, "model": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**saved, "data": batch["__state__"]}, part := f"{options.checkpoint}.part")
            os.replace(part, options.checkpoint)  # at once, so that a kill leaves the last one
    if rank == 0:
        batch = next(iter(dataset.batches(8, seed=17, small_buckets="keep").torch()))
        save_grid(options.grid, batch["caption"], draw(net, layout, batch, seeds=range(8)))
        say(f"drew {len(batch['caption'])} captions, 8 times each: {options.grid}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shards")
    parser.add_argument("--checkpoint", type=Path, default="train_dit.pt", help="of one model")
    parser.add_argument("--grid", type=Path, default="train_dit.png", help="what it draws")
    numbers = {"steps": 1800, "batch-size": 32, "save-every": 100, "width": 128, "depth": 4}
    for name, value in {**numbers, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="(%(default)s)")
    options = parser.parse_args()
    if any(getattr(options, n.replace("-", "_")) < 1 for n in numbers) or options.width % 32:
        parser.error(f"--{', --'.join(numbers)} must be above 0, --width a multiple of 32")
    try:
        train(shardwright.open(options.shards), options)
    except (shardwright.ShardwrightError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(f"interrupted; the same command continues after {options.checkpoint}")


if __name__ == "__main__":
    main()
