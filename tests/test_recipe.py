"""The specification's recipe: the contract's own words, and what follows from a component."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path

import msgspec

from shardwright.recipes import SPECIFICATION, Component, Mask, Recipe, Side


def test_a_sample_has_the_members_of_the_specification_in_order() -> None:
    assert SPECIFICATION.suffixes == ("json", "dinov3.npy", "vae.npy", "t5h.npy", "t5m.npy")


def test_the_components_are_those_of_the_specification() -> None:
    assert {
        c.name: (c.folder, c.dtype, c.shape_for(1216, 832)) for c in SPECIFICATION.components
    } == {
        "dinov3": ("dinov3", "<f4", (1024,)),
        "vae": ("vae_latents", "<f2", (16, 104, 152)),
        "t5": ("t5_hidden", "<f2", (77, 1024)),
    }


def test_the_formats_list_every_field_that_may_hold_an_array() -> None:
    text = (Path(__file__).parents[1] / "FORMAT.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    for component in SPECIFICATION.components:
        (row,) = [row for row in rows if f"`{component.inline[0]}`" in row]
        assert tuple(re.findall("`([^`]+)`", row)) == (component.name, *component.inline)


def test_suffixes_can_be_distinguished_by_every_loader() -> None:
    suffixes = SPECIFICATION.suffixes
    assert len(set(suffixes)) == len(suffixes)
    assert all(suffix == suffix.lower() for suffix in suffixes)


def test_an_axis_that_follows_the_picture_may_have_any_length_but_none() -> None:
    pose = Component("pose", "pose", "pose.npy", "<f2", (133, Side("width", 8)))
    assert pose.accepts((133, 1))
    assert pose.accepts((133, 500))
    assert not pose.accepts((133, 0))
    assert not pose.accepts((132, 5))
    assert not pose.accepts((133,))
    assert not pose.accepts((133, 5, 1))


def test_sizes_are_rounded_down_as_the_specification_says() -> None:
    pose = Component("pose", "pose", "pose.npy", "<f2", (Side("height", 8), Side("width", 8)))
    assert pose.shape_for(17, 15) == (1, 2)
    assert pose.nbytes((1, 2)) == 4


def test_what_was_asked_of_a_component_is_no_part_of_its_value() -> None:
    def asked(component: Component) -> tuple[object, ...]:
        names = ("members", "extension", "is_array", "follows_picture", "header_dtype", "is_float")
        return tuple(getattr(component, name) for name in names)

    new = msgspec.json.decode(msgspec.json.encode(SPECIFICATION), type=Recipe)
    (_, vae, t5), encoded = new.components, msgspec.json.encode(new)
    assert asked(vae) == (("vae.npy",), ".npy", True, True, "<f2", True)
    assert asked(t5) == (("t5h.npy", "t5m.npy"), ".npy", True, False, "<f2", True)
    assert vae.fits((16, 104, 152), 1216, 832)
    assert msgspec.json.encode(new) == encoded
    assert pickle.loads(pickle.dumps(new)) == new == SPECIFICATION
    half = replace(vae, dtype="bfloat16", suffix="a.webp", shape=(4, 5), mask=Mask("m", "m.npy", 3))
    assert asked(half) == (("a.webp", "m.npy"), ".webp", False, False, "<u2", True)
    assert half.fits((4, 5), 1216, 832)
    assert not half.fits((16, 104, 152), 1216, 832)
    assert not asked(replace(half, dtype="|u1"))[-1]
