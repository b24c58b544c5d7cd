"""The Stage 3 format: WebDataset tar shards, one folder per aspect bucket."""
