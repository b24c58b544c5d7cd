"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from shardwright.looking.viewer import Viewer
from tests.commands import start, wait_until
from tests.derive.pictures import save
from tests.look.pictures import HOSTILE, Folders, Served, painted, previews

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium-headless-shell or chromium")

DESK: ViewportSize = {"width": 1200, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
VIEWS = ("", "?view=grid", "?view=sample&n=0", "?view=duplicates", "?view=map")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=120_000)  # on a busy machine
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must log no error, and ask nobody but the server that it is from."""
    context = browser.new_context(viewport=DESK)
    opened = context.new_page()
    opened.set_default_timeout(120_000)
    errors: list[str] = []
    hosts: set[str | None] = set()
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    yield opened
    assert errors == []
    assert hosts - {None} == {"127.0.0.1"}  # a data: address has no host
    context.close()


@pytest.fixture(scope="module")
def shown(demonstrated: Path) -> Iterator[Served]:
    """The shards of the demo, with their images."""
    with Served(Viewer(previews(demonstrated / "shards", demonstrated / "images"))) as served:
        yield served


def ids(page: Page) -> list[str]:
    page.wait_for_load_state("networkidle")
    return page.locator(".card .id").all_inner_texts()


def compare_all(served: Served) -> None:
    """Find near-duplicates, as the button on the page does."""
    served.get("api/similar?start=1")
    wait_until(lambda: served.get("api/similar")["state"] == "ready", seconds=60)


def test_an_attention_line_leads_to_the_sample_whose_crop_is_drawn(
    page: Page, shown: Served
) -> None:
    page.goto(shown.url)
    page.get_by_role("link", name="2 images cropped by more than 25%").click()
    page.locator(".card").first.wait_for()
    assert ids(page) == ["demo017", "demo021"]
    page.locator(".card").first.click()
    crop = page.locator("svg.crop")
    crop.wait_for()
    assert "cuts off 36 % of the image" in page.locator("main").inner_text()
    image = page.locator("figure img").first.bounding_box()
    drawn = crop.bounding_box()
    assert image is not None
    assert drawn is not None
    for side in ("x", "y", "width", "height"):
        assert drawn[side] == pytest.approx(image[side], abs=2), "it lies over the image"
    address, text = page.url, page.locator("main").inner_text()
    page.reload()
    crop.wait_for()
    assert (page.url, page.locator("main").inner_text()) == (address, text)
    page.go_back()
    page.locator(".card").first.wait_for()
    assert ids(page) == ["demo017", "demo021"]


def test_a_caption_that_was_cut_shows_what_was_cut_off(page: Page, shown: Served) -> None:
    page.goto(shown.url)
    page.get_by_role("link", name="1 caption is cut off").click()
    page.locator(".card").first.click()
    cut = page.locator("mark, .lost").first
    cut.wait_for()
    caption = shown.viewer.source.record(shown.viewer.table.ids.index("demo019"))["caption"]
    text = cut.inner_text().strip()
    assert caption.endswith(text)
    assert text == "there is no line, no dot and no letter, only more of it"
    assert "15 tokens" in page.locator("main").inner_text()


def test_filters_and_sorting_are_in_the_address_and_survive_a_reload(
    page: Page, shown: Served
) -> None:
    page.goto(f"{shown.url}?view=grid")
    page.locator("#filter-text").fill("red field")
    page.locator("#filter-bucket").select_option("768x1280")
    page.locator("#filter-sort").select_option("tokens_t5")
    page.locator("#filter-order").select_option("desc")
    page.wait_for_url(re.compile("order=desc"))
    found = ids(page)
    table = shown.viewer.table
    wanted = [
        image_id
        for number, image_id in enumerate(table.ids)
        if table.buckets[number] == "768x1280" and b"red field" in table.captions[number]
    ]
    assert sorted(found) == sorted(wanted)
    assert found[0] == "demo019", "which has the most tokens"
    assert page.locator(".found").inner_text() == f"{len(wanted)} of 24 samples"
    page.reload()
    page.locator(".card").first.wait_for()
    assert ids(page) == found
    assert page.locator("#filter-text").input_value() == "red field"


def test_the_slider_changes_the_groups_and_the_address(page: Page, shown: Served) -> None:
    page.goto(f"{shown.url}?view=duplicates")
    if shown.viewer.search.state == "none":
        page.locator("button.main").click()
    page.locator(".group").first.wait_for()
    few = page.locator(".found").inner_text()
    assert few == "1 group with 2 samples"
    slider = page.locator("#threshold")
    slider.focus()
    for _ in range(22):
        page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile(r"threshold=0\.84"))
    expect(page.locator(".found")).not_to_have_text(few)
    found = shown.get("api/groups?threshold=0.84")
    assert found["samples"] > 2
    text = page.locator(".found").inner_text()
    assert text.startswith(f"{found['groups']} group")
    page.reload()
    page.locator(".group").first.wait_for()
    assert page.locator("#threshold").input_value() == "0.84"
    page.goto(shown.url)
    page.get_by_role("link", name="nearly alike").click()
    page.locator(".card").first.wait_for()
    assert ids(page) == ["demo016", "demo020"]


def test_a_point_of_the_map_opens_its_sample(page: Page, shown: Served) -> None:
    compare_all(shown)
    page.goto(f"{shown.url}?view=map")
    canvas = page.locator("canvas").first
    canvas.wait_for()
    page.wait_for_load_state("networkidle")
    box = canvas.bounding_box()
    assert box is not None
    for across in np.arange(0.02, 1, 0.02):
        for down in np.arange(0.04, 1, 0.04):
            page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
            if page.locator(".tip").is_visible():
                page.mouse.down()
                page.mouse.up()
                page.wait_for_url(re.compile("view=sample"))
                return
    pytest.fail("no point was found")


def test_the_keyboard_is_enough(page: Page, shown: Served) -> None:
    page.goto(f"{shown.url}?view=grid")
    page.locator(".card").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("view=sample"))
    page.locator("figure img").first.wait_for()
    first = page.url
    page.keyboard.press("n")
    expect(page).not_to_have_url(first)
    page.keyboard.press("Escape")
    expect(page.locator(".card:focus")).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#filter-text")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_nothing_is_wider_than_a_phone_and_text_can_be_read_in_both_schemes(
    page: Page, shown: Served
) -> None:
    compare_all(shown)
    page.set_viewport_size(PHONE)
    for view in VIEWS:
        page.goto(f"{shown.url}{view}")
        page.locator("main h1, main .card, main canvas").first.wait_for()
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], view
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            style = "getComputedStyle(document.body)"
            colours = page.evaluate(f"[{style}.color, {style}.backgroundColor]")
            ink, paper = (sum(map(int, re.findall(r"\d+", each)[:3])) / 3 for each in colours)
            assert (ink > paper + 120) if scheme == "dark" else (paper > ink + 120), view


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Samples whose ids, captions and columns try to run scripts and to break out."""
    from shardwright import derive

    root = tmp_path_factory.mktemp("hostile")
    names = (
        "<svg onload=document.title=1>",
        '"><script>document.title=1<',
        "x' onerror='document.title=1",
        "javascript:document.title=1",
        "‮gnp.live",
        "w" * 200,
    )
    lines = ["image_path,caption,<b>column</b>"]
    for number, name in enumerate(names):
        save(root / "images" / f"{name}.png", painted(64, 64, seed=number))
        quoted = str(root / "images" / f"{name}.png").replace('"', '""')
        caption = (HOSTILE * 20).replace('"', '""')
        lines.append(f'"{quoted}","{caption}","</script><img src=x onerror=document.title=1>"')
    (root / "captions.csv").write_text("\n".join(lines))
    (root / "small.toml").write_text(
        'extends = "prx"\n[images]\nfit = "bucket"\nbuckets = ["64x64"]\n'
    )
    derive(
        root / "images",
        captions=root / "captions.csv",
        recipe=root / "small.toml",
        derived_dir=root / "store",
        encoders="sketch",
    )
    with Served(Viewer(previews(root / "store"), previews(root / "store"))) as served:
        yield served


def test_hostile_ids_and_captions_are_shown_as_text(page: Page, hostile: Served) -> None:
    compare_all(hostile)
    page.set_viewport_size(PHONE)
    for view in ("", "?view=grid", "?view=duplicates&threshold=0.8", "?view=map"):
        page.goto(f"{hostile.url}{view}")
        page.locator("main h1, main .card, main canvas").first.wait_for()
        page.wait_for_load_state("networkidle")
        assert "shardwright look" in page.title()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], view
    for number, image_id in enumerate(hostile.viewer.table.ids):
        page.goto(f"{hostile.url}?view=sample&n={number}")
        page.locator("figure img").first.wait_for()
        assert page.locator("h1").first.inner_text() == image_id
        assert HOSTILE in page.locator("main").inner_text()
        assert page.locator("[onerror], [onload], script:not([src])").count() == 0
        assert "shardwright look" in page.title()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], image_id


def test_two_paths_are_side_by_side(page: Page, at: Folders, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(at.store, other)
    latent = np.load(other / "vae_latents/img004.npy")
    np.save(other / "vae_latents/img004.npy", latent + np.float16(0.5))
    with Served(Viewer(previews(at.store), previews(other))) as served:
        page.goto(f"{served.url}?view=grid&id=img004")
        page.locator(".card").first.wait_for()
        assert page.locator(".card img").count() == 2
        page.locator(".card").first.click()
        table = page.get_by_role("table").filter(has_text="Largest difference")
        table.wait_for()
        rows = [row.split() for row in table.get_by_role("row").all_inner_texts()]
        same = {row[0]: row[1] for row in rows[1:]}
        assert same == {"dinov3.npy": "yes", "vae.npy": "no", "t5h.npy": "yes", "t5m.npy": "yes"}
        (row,) = (row for row in rows if row[0] == "vae.npy")
        assert float(row[2]) == pytest.approx(0.5, abs=0.01)
        assert str(other) in page.locator("main").inner_text()


def test_a_server_that_stopped_is_said_with_the_command_to_start_it(
    browser: Browser, at: Folders
) -> None:
    page = browser.new_page()  # its failed requests are logged as errors
    process = start("look", at.shards, "--no-browser", "--port", "0")
    try:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "http" in line)
        page.goto(f"{said.split()[2]}?view=grid")
        page.locator(".card").first.wait_for()
    finally:
        process.terminate()
        process.communicate(timeout=100)
    page.get_by_role("link", name="Overview").click()
    page.get_by_text("The server has stopped").wait_for()
    assert f"shardwright look {at.shards}" in page.locator("main").inner_text()
    page.close()
