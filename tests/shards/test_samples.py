"""The members made from a record: its metadata and its mask."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.recipes import SPECIFICATION
from shardwright.shards.format.record_members import json_member, mask_bytes, mask_member
from tests.stores import npy

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
REQUIRED = ("image_id", "aspect_bucket", "caption", "image_path", "height", "width")


@given(st.dictionaries(TEXT | st.sampled_from([*REQUIRED, "t5_attention_mask"]), VALUES))
@settings(max_examples=50, deadline=None)
def test_json_member_says_what_the_record_says(record: dict[str, Any]) -> None:
    data = json_member(record, SPECIFICATION)
    expected = dict.fromkeys(REQUIRED) | record
    expected.pop("t5_attention_mask", None)
    assert json.loads(data) == expected
    assert list(json.loads(data)) == sorted(expected)
    assert b"\n" not in data


@given(st.dictionaries(TEXT, TEXT))
@settings(max_examples=50, deadline=None)
def test_json_member_does_not_depend_on_the_order_of_fields(record: dict[str, str]) -> None:
    assert json_member(record, SPECIFICATION) == json_member(
        dict(reversed(record.items())), SPECIFICATION
    )


@given(st.lists(st.integers(0, 1), min_size=77, max_size=77))
@settings(max_examples=50, deadline=None)
def test_mask_member_is_what_numpy_saves(mask: list[int]) -> None:
    data = mask_member({"t5_attention_mask": mask}, SPECIFICATION.masks[0])
    assert data == npy(np.array(mask, dtype=np.uint8))
    assert len(data) == mask_bytes(SPECIFICATION.masks[0]) == 128 + 77
    assert np.load(io.BytesIO(data), allow_pickle=False).tolist() == mask
