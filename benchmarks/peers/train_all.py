"""Train with the loop of examples/train_dit.py, on batches that are read by one way.

The model is small, so that reading is a larger part of the time than in real training. Prints the
seconds of the steps, and the part of them that the loop waited for data.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import train_dit

import shardwright

shards, way, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
BATCH = 32


class Webdataset(IterableDataset):  # type: ignore[misc]
    """One-bucket batches as people make them with webdataset: a pipeline for each, in turn."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Do as our batches do; webdataset shuffles by itself."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import webdataset as wds

        pipelines = []
        for folder in sorted(shards.glob("bucket_*")):
            urls = sorted(map(str, folder.glob("*.tar")))
            samples = wds.WebDataset(
                urls,
                shardshuffle=len(urls),
                workersplitter=None,
                select_files=lambda name: "dinov3" not in name,  # as ours, only what is needed
            )
            batched = samples.shuffle(100).decode().batched(BATCH, collation_fn=stacked)
            pipelines.append(iter(batched))
        while pipelines:
            for each in list(pipelines):
                if (batch := next(each, None)) is None:
                    pipelines.remove(each)
                else:
                    yield batch


def stacked(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack arrays; trimmed text is padded to the longest, and its mask is cut to it."""
    longest = max(len(sample["t5h.npy"]) for sample in samples)
    text = torch.zeros(len(samples), longest, samples[0]["t5h.npy"].shape[1], dtype=torch.float16)
    for row, sample in zip(text, samples, strict=True):
        row[: len(sample["t5h.npy"])] = torch.from_numpy(sample["t5h.npy"])
    masks = torch.stack([torch.from_numpy(sample["t5m.npy"][:longest]) for sample in samples])
    latents = torch.stack([torch.from_numpy(sample["vae.npy"]) for sample in samples])
    return {"vae.npy": latents, "t5h.npy": text, "t5m.npy": masks}


def main() -> None:
    """Take so many steps, after two that do not count."""
    torch.set_num_threads(1)  # the other core reads
    dataset = shardwright.open(shards)
    layout = train_dit.Layout(dataset)
    net = train_dit.Transformer(layout, width=32, depth=2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    ours = dataset.fields("json", layout.latent, *layout.empty).batches(BATCH, drop_last=False)
    source = train_dit.endless(ours.torch() if way == "shardwright" else Webdataset())
    waited = 0.0
    for step in range(steps + 2):
        if step == 2:
            began, waited = time.perf_counter(), 0.0
        batch, wait = next(source)
        waited += wait
        loss = train_dit.loss_of(net, layout, batch, torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": round(seconds, 4), "idle": round(waited / seconds, 4)}))


if __name__ == "__main__":
    main()
