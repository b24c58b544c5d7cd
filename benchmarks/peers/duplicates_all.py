"""List the near-duplicates of shards, and count how many of those that were planted are listed.

Prints the seconds of ``look``, from opening the shards to the written list, and the part found.
"""

import json
import sys
import time
from pathlib import Path

from shardwright.looking import look

if __name__ == "__main__":
    shards, known, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True)
    began = time.perf_counter()
    look(shards, duplicates=out / "duplicates.jsonl")
    seconds = time.perf_counter() - began
    first: dict[str, str] = {}  # of the group of each
    for line in (out / "duplicates.jsonl").open():
        row = json.loads(line)
        first[row["image_id"]] = first[row["kept"]] = row["kept"]
    planted = json.loads(known.read_text())
    found = 0
    for group in planted:
        firsts = [first[one] for one in group if one in first]
        together = max(map(firsts.count, set(firsts)), default=0)
        found += together if together > 1 else 0
    recall = found / sum(map(len, planted))
    print(json.dumps({"seconds": round(seconds, 4), "recall": round(recall, 5)}))
