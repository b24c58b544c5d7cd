"""What other loaders need beside the shards: their indexes, and a card."""
