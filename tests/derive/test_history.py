"""Images that change in any way: an update with a prune ends as if derived from scratch."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.storage.files import using
from tests.derive.pictures import gradient, save, sketch, store_records
from tests.derive.updates import facts
from tests.durability.soak import SOAK, times
from tests.faults import Killed, KillingDisk, contents

NAMES = ("a", "b", "c", "d")
STEPS = st.tuples(
    st.sampled_from(["replace", "edit", "rename", "remove", "add"]),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.integers(0, 5),
)


def step(images: Path, kind: str, name: str, other: str, seed: int) -> None:
    """Change one image, if there is one to change."""
    picture, text = images / f"{name}.png", images / f"{name}.txt"
    if kind == "add" or (kind == "replace" and picture.exists()):
        save(picture, gradient(16 + 8 * (seed % 2), 16, seed=seed))
        if not text.exists():
            text.write_text(f"{name} {seed}")
    elif not picture.exists():
        return
    elif kind == "edit":
        text.write_text(f"edited {seed}")
    elif kind == "rename":
        picture.rename(images / f"{other}.png")
        text.rename(images / f"{other}.txt")
    elif len(list(images.glob("*.png"))) > 1:
        picture.unlink()
        text.unlink()


def held(derived: Path) -> dict[str, Any]:
    """Give what a store holds, without the order of its records."""
    arrays = {name: data for name, data in contents(derived).items() if name.endswith(".npy")}
    records = {record["image_id"]: record for record in store_records(derived)}
    known = {name: each["image"]["xxh3"] for name, each in facts(derived).items()}
    return {"arrays": arrays, "records": records, "facts": known}


@settings(max_examples=times(3), deadline=None)
@given(
    st.lists(st.lists(STEPS, max_size=6), min_size=1, max_size=3),
    st.sampled_from(["name", "path"] if SOAK else ["name"]),
    st.integers(0, 80 if SOAK else 0),
)
def test_any_history_ends_as_if_derived_from_scratch(
    history: list[list[tuple[str, str, str, int]]], ids: str, kill: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        images, derived = Path(folder) / "images", Path(folder) / "derived"
        for number, name in enumerate(NAMES[:3]):
            step(images, "add", name, name, number)
        sketch(images, derived, ids=ids)
        for steps in history:
            for each in steps:
                step(images, *each)
            if kill:
                with using(KillingDisk(kill)), suppress(Killed):
                    sketch(images, derived, update=True, prune=True)
                sketch(images, derived, update=True, prune=True)
            planned = sketch(images, derived, update=True, prune=True, dry_run=True)
            summary = sketch(images, derived, update=True, prune=True)
            for name in ("derived", "already_complete", "renamed", "pruned", "updated_images"):
                assert getattr(summary, name) == getattr(planned, name), name
            assert (summary.failed, summary.changed_images, summary.kept_captions) == (0, [], 0)
        fresh = Path(folder) / "fresh"
        sketch(images, fresh, ids=ids)
        assert held(derived) == held(fresh)
        shutil.rmtree(fresh)
