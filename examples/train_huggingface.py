"""A training loop on the same shards with Hugging Face datasets, streaming, bucket by bucket.

pip install datasets
shardwright demo
shardwright index shardwright-demo/shards --for hf
python examples/train_huggingface.py shardwright-demo/shards
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from datasets import get_dataset_config_names, load_dataset


def main() -> None:
    """Go through every bucket once; the dataset card has a configuration for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("shards")
    parser.add_argument("--batch-size", type=int, default=2)
    options = parser.parse_args()

    if not Path(options.shards, "README.md").is_file():
        sys.exit(f"{options.shards}: no dataset card there; run shardwright index --for hf")
    for bucket in get_dataset_config_names(options.shards):
        if bucket == "default":  # all buckets, which do not stack
            continue
        dataset = load_dataset(options.shards, bucket, split="train", streaming=True)
        shuffled = dataset.with_format("numpy").shuffle(seed=0, buffer_size=100)
        for batch in shuffled.iter(options.batch_size):
            latents = np.asarray(batch["vae.npy"], np.float32)
            ids = " ".join(record["image_id"] for record in batch["json"])
            print(f"{bucket} loss {np.square(latents).mean():.4f} {ids}")


if __name__ == "__main__":
    main()
