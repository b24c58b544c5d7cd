"""A training loop with Shardwright's own reader: batches of one bucket, resumable at any step.

    shardwright demo
    python examples/train_shardwright.py shardwright-demo/shards

Needs only shardwright. The "model" is a stand-in; put yours where ``train_step`` is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import shardwright

EPOCHS = 2
CHECKPOINT_EVERY = 3


def train_step(batch: dict[str, Any]) -> float:
    """Stand in for a model: look at every array once."""
    latents = batch["vae.npy"].astype(np.float32)  # (batch, 16, height/8, width/8), one bucket
    text = batch["t5h.npy"] * batch["t5m.npy"][:, :, None]  # (batch, 77, 1024), padding masked
    image = batch["dinov3.npy"]  # (batch, 1024)
    return float(np.square(latents).mean() + np.abs(text).mean() + np.abs(image).mean())


def main() -> None:
    """Train for a few epochs, going on where the checkpoint says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("shards")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.json"))
    parser.add_argument("--stop-after", type=int, help="steps, to try an interruption")
    options = parser.parse_args()

    dataset = shardwright.open(options.shards)
    print(f"{len(dataset)} samples: {dataset.buckets}")
    # With several GPUs give each process its rank= and world_size=.
    batches = dataset.batches(options.batch_size, seed=0, small_buckets="keep")
    step = 0
    if options.checkpoint.exists():
        saved = json.loads(options.checkpoint.read_text())
        step = saved["step"]
        batches.load_state_dict(saved["data"])
        print(f"going on after step {step}")

    for epoch in range(batches.epoch, EPOCHS):
        batches.set_epoch(epoch)
        for batch in batches:
            loss = train_step(batch)
            step += 1
            ids = " ".join(batch["image_id"])
            print(f"epoch {epoch} step {step} {batch['bucket']} loss {loss:.4f} {ids}")
            if step % CHECKPOINT_EVERY == 0:
                saved = {"step": step, "data": batch["__state__"]}
                options.checkpoint.write_text(json.dumps(saved))
            if step == options.stop_after:
                return


if __name__ == "__main__":
    main()
