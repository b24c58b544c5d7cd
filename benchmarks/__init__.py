"""How Shardwright compares with what people would use instead; see ``python -m benchmarks -h``."""
