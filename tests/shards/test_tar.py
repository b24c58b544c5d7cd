"""Tar headers are those that Python's tarfile writes, byte for byte."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.shards.format import tar

NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/"),
    min_size=1,
    max_size=100,
)


def by_tarfile(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, 0
    return info.tobuf(tarfile.USTAR_FORMAT)


@given(NAMES, st.integers(0, 8**11 - 1))
def test_a_header_is_the_one_tarfile_writes(name: str, size: int) -> None:
    header = tar.header(name, size)
    assert header == by_tarfile(name, size)
    assert len(header) == 512


@given(NAMES, st.integers(0, 8**11 - 1))
def test_a_header_reads_back(name: str, size: int) -> None:
    info = tarfile.TarInfo.frombuf(tar.header(name, size), "ascii", "strict")
    assert (info.name, info.size, info.mtime, info.uid, info.gid) == (name, size, 0, 0, 0)
    assert (info.mode, info.type, info.uname, info.gname) == (0o644, tarfile.REGTYPE, "", "")


@pytest.mark.parametrize(("name", "size"), [("x" * 101, 0), ("x", 8**11), ("x", 8**12), ("é", 0)])
def test_what_a_plain_header_cannot_say_is_refused(name: str, size: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - a slip of ours, never the user's
        tar.header(name, size)


@given(st.integers(0, 8**11 - 1))
def test_members_fill_blocks(size: int) -> None:
    assert 0 <= tar.padding(size) < 512
    assert (size + tar.padding(size)) % 512 == 0
    assert tar.member_bytes(size) == 512 + size + tar.padding(size)
