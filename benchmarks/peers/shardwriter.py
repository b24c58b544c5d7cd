"""The same with webdataset's ShardWriter."""

import io
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import webdataset

store, output = Path(sys.argv[1]), Path(sys.argv[2])
FILES = {"dinov3": "dinov3.npy", "vae_latents": "vae.npy", "t5_hidden": "t5h.npy"}

buckets = defaultdict(list)
with open(store / "approved_image_dataset.jsonl") as lines:
    for line in lines:
        record = json.loads(line)
        buckets[record["aspect_bucket"]].append(record)

for bucket, samples in buckets.items():
    folder = output / f"bucket_{bucket}"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = str(folder / "shard-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=1000, maxsize=1e12, verbose=0) as writer:
        for record in samples:
            mask = record.pop("t5_attention_mask")
            image_id = record["image_id"]
            out = io.BytesIO()
            np.save(out, np.array(mask, dtype=np.uint8))
            sample = {"__key__": image_id, "json": record, "t5m.npy": out.getvalue()}
            for source, suffix in FILES.items():
                sample[suffix] = (store / source / f"{image_id}.npy").read_bytes()
            writer.write(sample)
