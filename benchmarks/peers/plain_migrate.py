"""The loop everybody writes: json.loads, np.save, json.dumps."""

import json
import os
import sys
from pathlib import Path

import numpy as np

store = Path(sys.argv[1])
(store / "dinov3").mkdir()
with (
    open(store / "approved_image_dataset.jsonl") as lines,
    open(store / "new.jsonl", "w") as out,
):
    for line in lines:
        record = json.loads(line)
        record["image_id"] = Path(record["image_path"]).stem
        embedding = np.array(record.pop("dinov3_embedding"), dtype=np.float32)
        np.save(store / "dinov3" / f"{record['image_id']}.npy", embedding)
        out.write(json.dumps(record) + "\n")
os.replace(store / "new.jsonl", store / "approved_image_dataset.jsonl")
