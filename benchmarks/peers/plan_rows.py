"""Plan shards from the inputs of a build by one way."""

import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

SIZE = 1000  # samples of a shard
Row = TypeVar("Row")


def shardwright(folder: Path) -> int:
    from shardwright.building import plan, rows
    from shardwright.engine.local import Local
    from shardwright.packing.choice import Choice
    from shardwright.progress import Progress
    from shardwright.recipes import SPECIFICATION, Selection
    from shardwright.recipes.split import Split
    from shardwright.shards.format.manifest import PackSettings

    split = Split((("val", 0.01),))
    settings = PackSettings(
        buckets=[], shuffle=True, seed=0, limit=None, shard_size=SIZE, split=split
    )
    choice = Choice(settings, Selection())
    numbers: dict[str | None, dict[str, int]] = {name: {} for name in split.names}
    rows.checksum(folder)
    found = plan.read(folder, SPECIFICATION, choice, {}, numbers, Local(1), Progress())
    return found.samples


def dicts(folder: Path) -> int:
    """As a script would do it."""
    with (folder / "inputs.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    random.Random(0).shuffle(rows)
    grouped: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[row["aspect_bucket"]].append(row)
    return sum(len(shard) for rows in grouped.values() for shard in _cut(rows))


def arrow(folder: Path) -> int:
    """Read the same three fields into columns."""
    import numpy as np
    import pyarrow
    from pyarrow import compute
    from pyarrow import json as arrow_json

    fields = [(name, pyarrow.string()) for name in ("image_id", "image_path", "aspect_bucket")]
    options = arrow_json.ParseOptions(
        explicit_schema=pyarrow.schema(fields), unexpected_field_behavior="ignore"
    )
    table = arrow_json.read_json(folder / "inputs.jsonl", parse_options=options)
    order = np.random.default_rng(0).permutation(len(table))
    codes = compute.dictionary_encode(table["aspect_bucket"]).combine_chunks().indices.to_numpy()
    codes = codes[order]
    groups = [order[codes == code].tolist() for code in np.unique(codes)]
    return sum(len(shard) for rows in groups for shard in _cut(rows))


def lines(folder: Path) -> int:
    """Only read."""
    with (folder / "inputs.jsonl").open("rb") as file:
        return sum(1 for _ in file)


def _cut(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[start : start + SIZE] for start in range(0, len(rows), SIZE)]


WAYS: dict[str, Callable[[Path], int]] = {
    way.__name__: way for way in (shardwright, dicts, arrow, lines)
}

if __name__ == "__main__":
    folder, way = Path(sys.argv[1]), sys.argv[2]
    assert WAYS[way](folder) == int(folder.name.rpartition("-")[2])
