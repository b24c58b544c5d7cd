"""The Stage 2 format: one metadata JSONL and a folder of ``.npy`` files per component."""
