"""Reading shards for training."""
