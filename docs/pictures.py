"""Makes the pictures that README and docs show, from the demo: ``make pictures``.

What the example that trains has drawn is among them, if ``make train`` has run.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent / "pictures"
DRAWN = Path(__file__).parents[1] / "train/grid.png"
BROWSER = "/usr/bin/chromium-headless-shell"
WIDTH, HEIGHT = 1200, 800
VIEWS = {"overview": "", "grid": "?view=grid", "map": "?view=map"}
COLOURS = 192  # of the files, which are in the repository


@contextmanager
def demo(folder: Path) -> Iterator[str]:
    """Run the demo and show its shards; give the address."""
    command = [sys.executable, "-m", "shardwright"]
    subprocess.run([*command, "demo", "demo"], cwd=folder, check=True, capture_output=True)
    arguments = ["look", "demo/shards", "--no-browser", "--port", "0"]
    shown = subprocess.Popen([*command, *arguments], cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert shown.stderr is not None
        (url,) = re.findall(r"http://\S+", next(line for line in shown.stderr if "http" in line))
        yield url
    finally:
        shown.terminate()
        shown.wait()


def save(page: Page, name: str) -> None:
    """Save what the page shows as a small file."""
    page.wait_for_load_state("networkidle")
    shrink(io.BytesIO(page.screenshot()), name)


def shrink(file: Path | io.BytesIO, name: str) -> None:
    """Save a picture with fewer colours."""
    with Image.open(file) as image:
        small = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(FOLDER / f"{name}.png", optimize=True)


def main() -> None:
    """Make all pictures, in light and dark."""
    FOLDER.mkdir(exist_ok=True)
    if DRAWN.exists():
        shrink(DRAWN, "train")
    with tempfile.TemporaryDirectory() as folder, demo(Path(folder)) as url, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        for scheme, end in (("light", ""), ("dark", "-dark")):
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            page.goto(f"{url}?view=duplicates")
            page.locator("button.main, #threshold").first.wait_for()
            if page.locator("button.main").is_visible():
                page.locator("button.main").click()
            page.locator("#threshold").wait_for()
            save(page, f"duplicates{end}")
            for name, address in VIEWS.items():
                page.goto(f"{url}{address}")
                page.locator("h1, .card, canvas").first.wait_for()
                save(page, f"{name}{end}")
            page.goto(f"{url}?view=grid&flag=cropped")
            page.locator(".card").first.click()
            page.locator("svg.crop").wait_for()
            save(page, f"sample{end}")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
