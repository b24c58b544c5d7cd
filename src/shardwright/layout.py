"""Names that every store and every shard folder uses."""

JSONL_NAME = "approved_image_dataset.jsonl"
STATE_FOLDER = ".shardwright"  # hidden, because loaders open every visible file of a shard folder
EMPTY_FOLDER = "empty"  # in it: the arrays and masks of the empty caption
BUCKET_PREFIX = "bucket_"  # of the folder of a bucket
