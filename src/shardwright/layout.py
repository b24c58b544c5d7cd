"""The names that every store and every shard folder has."""

JSONL_NAME = "approved_image_dataset.jsonl"
STATE_FOLDER = ".shardwright"  # hidden, because loaders open every visible file of a shard folder
