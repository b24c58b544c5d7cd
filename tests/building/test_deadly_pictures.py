"""A picture that kills the process which looks at it is left out, and all others are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.building.builds import reasons, records, write_recipe
from tests.derive.pictures import make_images
from tests.sick import DEADLY, sick

pytestmark = pytest.mark.timeout(600)

HOW = "the process that read it died by signal 9 (Killed), twice"


@pytest.mark.parametrize(("count", "deadly"), [(3, [1]), (3, [0, 1, 2]), (90, [0, 41, 42, 89])])
def test_build_names_a_deadly_picture_and_takes_all_others(
    tmp_path: Path, count: int, deadly: list[int]
) -> None:
    images = make_images(tmp_path / "images", count, ((96, 64),))
    names = [f"img{number:03}" for number in range(count)]
    for number in deadly:
        (images / f"{names[number]}.png").write_bytes(DEADLY)
    flags = ("--recipe", write_recipe(tmp_path), "--encoders", "sketch")
    out = ("--output-dir", tmp_path / "out")
    done = sick(tmp_path / "none", "build", images, *flags, *out)
    assert done.returncode == 3, done.stderr
    example = images / f"{names[deadly[0]]}.png"
    assert f"  decoder_died: {len(deadly)} (for example {example})" in done.stdout
    assert "--workers" not in done.stderr
    left = [name for number, name in enumerate(names) if number not in deadly]
    assert f"written_samples: {len(left)}\n" in done.stdout
    assert sorted(records(tmp_path / "out")) == left
    assert reasons(tmp_path / "out") == {f"{names[n]}.png": "decoder_died" for n in deadly}
