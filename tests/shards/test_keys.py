"""Keys: any id at all gives a name that every loader splits alike, and no two ids give one."""

from __future__ import annotations

import re
import string

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwright.recipes import SPECIFICATION
from shardwright.shards.format.keys import key, keys

# Whatever a file may be called; half of them of the characters that matter.
IDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1),
    st.text("ab_-%.5F ~é", min_size=1, max_size=120),
)
# How webdataset and its kin take a member's name apart.
LONGEST = SPECIFICATION.longest_key
SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


@given(IDS)
@example("__a")
@example(".")
@example("x" * 89)
@example("x" * 90)
@example("é" * 125)
def test_every_member_name_is_safe_for_every_loader(image_id: str) -> None:
    name = key(image_id, LONGEST)
    assert re.fullmatch(r"[A-Za-z0-9_%-]+", name)
    assert not name.startswith("__")
    for suffix in SPECIFICATION.suffixes:
        member = f"{name}.{suffix}"
        assert len(member.encode()) <= 100
        match = SPLIT.match(member)
        assert match is not None
        assert match.groups() == (name, suffix)


@given(st.lists(IDS, unique=True, max_size=30))
@settings(max_examples=100)
@example(["__a", "%5F_a", "%255F_a"])
@example(["a.b", "a%2Eb", "a%252Eb"])
@example(["x" * 200, "x" * 201, "x" * 57 + "y" * 100])
def test_different_ids_have_different_keys(ids: list[str]) -> None:
    assert len({key(image_id, LONGEST) for image_id in ids}) == len(ids)


@given(IDS)
@settings(max_examples=100)
def test_a_key_is_no_other_ids_key(image_id: str) -> None:
    """An id that looks like somebody's key does not get that key."""
    name = key(image_id, LONGEST)
    assert name == image_id or key(name, LONGEST) != name


@given(st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=89))
def test_an_ordinary_id_is_its_own_key(image_id: str) -> None:
    assert key(image_id, LONGEST) == image_id or image_id.startswith("__")


def test_the_longest_ordinary_id_is_89_bytes() -> None:
    assert key("x" * 89, LONGEST) == "x" * 89
    assert key("x" * 90, LONGEST) != "x" * 90
    assert len(key("x" * 90, LONGEST)) == 89


def test_escapes_are_never_cut_in_two() -> None:
    for length in range(20, 120):
        stem = key("x" * length + "é" * 40, LONGEST).partition("%-")[0]
        assert re.fullmatch(r"(x|%C3|%A9)*", stem)


def test_a_long_key_begins_readably() -> None:
    assert key("holiday-" + "x" * 200, LONGEST).startswith("holiday-xxx")


@given(st.lists(st.one_of(IDS, st.text("ab_", max_size=95))))
@example(["a", "__b"])
@example(["a\nb"])
@example(["a", ""])
@example(["x" * 91])
def test_many_ids_are_spelt_as_each_is(ids: list[str]) -> None:
    assert list(keys(ids, LONGEST)) == [key(image_id, LONGEST) for image_id in ids]
