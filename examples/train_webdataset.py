"""A training loop on the same shards with webdataset, one bucket after another.

pip install webdataset
shardwright demo
python examples/train_webdataset.py shardwright-demo/shards
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack the arrays of samples of one bucket."""
    arrays = [name for name in samples[0] if name.endswith(".npy")]
    batch: dict[str, Any] = {name: np.stack([s[name] for s in samples]) for name in arrays}
    return batch | {"json": [sample["json"] for sample in samples]}


def main() -> None:
    """Go through every bucket once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--batch-size", type=int, default=2)
    options = parser.parse_args()

    buckets = sorted(options.shards.glob("bucket_*"))
    if not buckets:
        sys.exit(f"{options.shards}: no bucket_* folders there; give the --output-dir of a pack")
    for folder in buckets:
        urls = sorted(map(str, folder.glob("*.tar")))
        dataset = (
            wds.WebDataset(urls, shardshuffle=len(urls))
            .shuffle(100)
            .decode()
            .batched(options.batch_size, collation_fn=collate)
        )
        for batch in dataset:
            latents = batch["vae.npy"].astype(np.float32)
            ids = " ".join(record["image_id"] for record in batch["json"])
            print(f"{folder.name} loss {np.square(latents).mean():.4f} {ids}")


if __name__ == "__main__":
    main()
