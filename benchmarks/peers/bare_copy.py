"""The limit: the same bytes copied by the same number of processes, with nothing else done."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

store, output, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
FOLDERS = ("dinov3", "vae_latents", "t5_hidden")


def copy(task: tuple[int, list[str]]) -> None:
    number, names = task
    out = os.open(output / f"{number}", os.O_WRONLY | os.O_CREAT, 0o644)
    for name in names:
        for folder in FOLDERS:
            source = os.open(store / folder / name, os.O_RDONLY)
            left = os.fstat(source).st_size
            while left:
                left -= os.copy_file_range(source, out, left)
            os.close(source)
    if "--sync" in sys.argv:
        os.fsync(out)
    os.close(out)


if __name__ == "__main__":
    output.mkdir(parents=True)
    names = sorted(os.listdir(store / FOLDERS[0]))
    count = max(4, workers)
    tasks = [(number, names[number::count]) for number in range(count)]
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(copy, tasks))
