"""The script everybody writes: json, three is_file a record, tarfile.addfile."""

import io
import json
import sys
import tarfile
from collections import defaultdict
from pathlib import Path

import numpy as np

store, output = Path(sys.argv[1]), Path(sys.argv[2])
FILES = {"dinov3": "dinov3.npy", "vae_latents": "vae.npy", "t5_hidden": "t5h.npy"}

buckets = defaultdict(list)
with open(store / "approved_image_dataset.jsonl") as lines:
    for line in lines:
        record = json.loads(line)
        mask = record.get("t5_attention_mask")
        if not record.get("caption") or not mask or len(mask) != 77:
            continue
        if not all(value in (0, 1) for value in mask):
            continue
        if all((store / folder / f"{record['image_id']}.npy").is_file() for folder in FILES):
            buckets[record["aspect_bucket"]].append(record)

if len(sys.argv) > 3:  # --dry-run: the scan only
    sys.exit()


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


for bucket, samples in buckets.items():
    folder = output / f"bucket_{bucket}"
    folder.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, len(samples), 1000)):
        with tarfile.open(folder / f"shard-{number:06}.tar", "w") as tar:
            for record in samples[first : first + 1000]:
                mask = record.pop("t5_attention_mask")
                image_id = record["image_id"]
                add(tar, f"{image_id}.json", json.dumps(record).encode())
                for source, suffix in FILES.items():
                    add(
                        tar,
                        f"{image_id}.{suffix}",
                        (store / source / f"{image_id}.npy").read_bytes(),
                    )
                out = io.BytesIO()
                np.save(out, np.array(mask, dtype=np.uint8))
                add(tar, f"{image_id}.t5m.npy", out.getvalue())
