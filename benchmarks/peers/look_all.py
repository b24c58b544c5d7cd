"""Open shards in ``shardwright look`` as a browser does: the overview, then the first samples.

Prints the seconds from the start of the command to the answer, and those of a search in all
captions.
"""

import json
import re
import subprocess
import sys
import time
from urllib.request import urlopen


def ask(url: str) -> float:
    """Give the seconds of an answer."""
    began = time.perf_counter()
    with urlopen(url, timeout=60) as answer:
        answer.read()
    return time.perf_counter() - began


if __name__ == "__main__":
    shards = sys.argv[1]
    began = time.perf_counter()
    command = [sys.executable, "-m", "shardwright", "look", shards, "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        said = next(line for line in server.stderr if "http" in line)
        (url,) = re.findall(r"http://\S+", said)
        ask(f"{url}api/overview")
        ask(f"{url}api/samples")
        seconds = time.perf_counter() - began
        search = ask(f"{url}api/samples?text=worth%20training%20abc&sort=bytes&order=desc")
    finally:
        server.terminate()
        server.wait()
    print(json.dumps({"seconds": round(seconds, 4), "search": round(search, 4)}))
