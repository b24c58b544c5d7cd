"""What an error says when two recipes differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from shardwright.buckets import Bucket
from shardwright.recipes import SPECIFICATION, Component, Mask, Recipe, Side, differences


def changed(name: str, **values: Any) -> Recipe:  # noqa: ANN401
    components = SPECIFICATION.components
    return replace(
        SPECIFICATION,
        components=tuple(replace(c, **values) if c.name == name else c for c in components),
    )


def test_a_recipe_does_not_differ_from_itself_or_its_copy() -> None:
    copy = msgspec.json.decode(msgspec.json.encode(SPECIFICATION), type=Recipe)
    assert differences(SPECIFICATION, copy) == []


def test_another_number_of_tokens_is_named_once() -> None:
    t5 = SPECIFICATION.by_name["t5"]
    assert t5.mask is not None
    longer = changed(
        "t5",
        shape=(512, 1024),
        mask=replace(t5.mask, length=512),
        settings={**t5.settings, "tokens": 512},
    )
    assert differences(SPECIFICATION, longer) == ["t5: tokens was 77, now 512"]


def test_values_are_named_as_a_recipe_file_writes_them() -> None:
    new = changed("vae", dtype="bfloat16", shape=(4, Side("height", 16), Side("width", 1)))
    assert differences(SPECIFICATION, new) == [
        "vae: dtype was float16, now bfloat16",
        "vae: shape was [16, height/8, width/8], now [4, height/16, width]",
    ]


def test_every_key_that_decides_the_files_is_compared() -> None:
    t5 = SPECIFICATION.by_name["t5"]
    settings = {**t5.settings, "layer": -2}
    settings.pop("attention_mask")
    new = changed(
        "t5",
        folder="text",
        suffix="text.npy",
        field="long",
        trim=True,
        encoder="text",
        mask=Mask("kept", "kept.npy", 77),
        settings=settings,
    )
    assert differences(SPECIFICATION, new) == [
        "t5: encoder was t5, now text",
        "t5: attention_mask was true, now not given",
        "t5: folder was t5_hidden, now text",
        "t5: suffix was t5h.npy, now text.npy",
        "t5: field was caption, now long",
        "t5: trim was false, now true",
        "t5: mask was [t5_attention_mask, t5m.npy, tokens], now [kept, kept.npy, tokens]",
        "t5: layer was not given, now -2",
    ]


def test_the_name_of_a_model_is_left_to_the_provenance() -> None:
    vae = SPECIFICATION.by_name["vae"]
    other = changed("vae", settings={**vae.settings, "model": "a/b"})
    assert differences(SPECIFICATION, other) == []


def test_another_folder_of_the_same_model_is_another_model() -> None:
    vae = SPECIFICATION.by_name["vae"]
    other = changed("vae", settings={**vae.settings, "subfolder": "vae_1_0"})
    assert differences(SPECIFICATION, other) == ["vae: subfolder was vae, now vae_1_0"]


def test_added_removed_and_reordered_components_are_named() -> None:
    pose = Component("pose", "pose", "pose.npy", "<f2", ("any", 3), source="elsewhere")
    new = replace(SPECIFICATION, components=(*SPECIFICATION.components[1:], pose))
    assert differences(SPECIFICATION, new) == ["dinov3: removed", "pose: added"]
    back = replace(SPECIFICATION, components=SPECIFICATION.components[::-1])
    assert differences(SPECIFICATION, back) == [
        "components: were dinov3, vae, t5, now t5, vae, dinov3"
    ]


def test_buckets_and_fit_are_compared() -> None:
    buckets = (*SPECIFICATION.buckets[1:], Bucket(512, 512))
    new = replace(SPECIFICATION, buckets=buckets, fit="bucket")
    assert differences(SPECIFICATION, new) == [
        "buckets: 1024x1024 removed, 512x512 added",
        "fit was original, now bucket",
    ]
    turned = replace(SPECIFICATION, buckets=SPECIFICATION.buckets[::-1])
    assert differences(SPECIFICATION, turned) == ["buckets: in another order"]
