"""The files of a shard folder, byte for byte: names, tars, indexes and the manifest."""
