"""write the index files that other loaders need, or remove them.

Writes the files that a loader needs beside the shards. They are made from the index of pack; no
shard is read. Plain webdataset and Ray Data need nothing. For the others, --for

  energon   .nv-meta/ and a .tar.idx beside each shard: Megatron-Energon
  dali      .dali/BUCKET/SHARD.idx, for index_paths of fn.readers.webdataset: NVIDIA DALI
  wids      .wids.json, for ShardListDataset: webdataset 0.2; set WIDS_CACHE, not cache_dir=,
            which goes by file name alone and mixes up the buckets
  webshart  a .json beside each shard; give webshart one bucket's folder
  hf        README.md, a dataset card that makes load_dataset(SHARDS) work: Hugging Face

Run it again after every pack; files of shards that are gone are removed. A file that index did not
write, or that you edited, is never replaced or removed. In the card, write your own text outside
the two marked parts. Visible files of one loader can confuse another (Hugging Face's data_dir=
opens each as a tar), so write only what you use; --remove removes them.

  shardwright index data/shards --for hf
  shardwright index data/shards --for energon,wids
  shardwright index data/shards --for energon --remove
  shardwright index s3://bucket/shards --for wids

exit status:
  0    done
  1    failed
  2    wrong usage, or there are no packed shards
  11   another run is writing there
  12   the manifest or an index is damaged
  130  interrupted (terminated: 143, hung up: 129); the same command continues
"""

from __future__ import annotations

from shardwright.cli.options import RECIPE, names, path, switch
from shardwright.shards.loaders import IndexSummary
from shardwright.text import shown

_LISTED = 4  # files that are named
_LOADERS = ("energon", "dali", "wids", "webshart", "hf")


FLAGS = {
    "shards": path("SHARDS", "a folder or a URL (data/shards, or as the recipe says)"),
    **RECIPE,
    "--for": names("LOADER", f"{', '.join(_LOADERS[:-1])} or {_LOADERS[-1]}", *_LOADERS),
    "--remove": switch("remove the loader's files instead"),
}


def describe(summary: IndexSummary) -> str:
    """List the files that were written and removed."""
    lines = [f"{shown(summary.shards)}: index files for {', '.join(summary.loaders)}"]
    for verb, paths in (("wrote", summary.written), ("removed", summary.removed)):
        names = ", ".join(map(shown, paths))
        if len(paths) > _LISTED:
            names = f"{len(paths):,} files, from {shown(paths[0])} to {shown(paths[-1])}"
        lines += [f"  {verb} {names}"] if paths else []
    return "\n".join(lines if len(lines) > 1 else [f"{lines[0]}: there were none"])
