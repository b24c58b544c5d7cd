"""The limit: read the same files from end to end by the same number of processes."""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


def read(path: Path) -> int:
    buffer = bytearray(1 << 22)
    total = 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total


if __name__ == "__main__":
    paths = sorted(Path(sys.argv[1]).glob("bucket_*/*.tar"))
    with ProcessPoolExecutor(int(sys.argv[2])) as pool:
        print(sum(pool.map(read, paths)))
