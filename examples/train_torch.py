"""The same loop with torch: a DataLoader with workers, tensors, and a resumable state.

pip install '.[torch]'
shardwright demo
python examples/train_torch.py shardwright-demo/shards
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import DataLoader

import shardwright

EPOCHS = 2


def main() -> None:
    """Train a stand-in for a model for a few epochs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("shards")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Conv2d(16, 16, 3, padding=1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    batches = shardwright.open(options.shards).batches(options.batch_size, small_buckets="keep")
    dataset = batches.torch()
    loader = DataLoader(
        dataset,
        batch_size=None,  # the dataset gives complete batches
        num_workers=options.workers,
        pin_memory=device == "cuda",
        persistent_workers=options.workers > 0,
    )
    # To resume: dataset.load_state_dict(torch.load("checkpoint.pt")["data"])
    for epoch in range(dataset.epoch, EPOCHS):
        dataset.set_epoch(epoch)
        for step, batch in enumerate(loader):
            latents = batch["vae.npy"].to(device, non_blocking=True).float()
            loss = torch.nn.functional.mse_loss(model(latents), latents)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # What to keep in a checkpoint: {"model": model.state_dict(), "data": state}
            state = batch["__state__"]
            print(f"epoch {epoch} step {step} {batch['bucket']} loss {loss:.4f} {state['batch']}")


if __name__ == "__main__":
    main()
