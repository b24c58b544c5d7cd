"""Array headers: NumPy's own are read and written alike; anything else is a BadArrayError."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwright.recipes import SPECIFICATION, Component
from shardwright.store import content, npy
from shardwright.store.npy import BadArrayError
from tests import stores
from tests.fuzz.targets import SMALL, array_file, on_disk

SHAPES = st.lists(st.integers(0, 2**40), max_size=5).map(tuple)
DTYPES = st.sampled_from(["<f2", "<f4", "<f8", "|u1", "|b1", "<i8", "<c8", "|S5", "<U3", "<M8[ns]"])


def write_header(dtype: Any, shape: tuple[int, ...], version: tuple[int, int]) -> bytes:  # noqa: ANN401
    file = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": False, "shape": shape}
    if version == (1, 0):
        np.lib.format.write_array_header_1_0(file, fields)
    else:
        np.lib.format.write_array_header_2_0(file, fields)
    return file.getvalue()


def check(data: bytes, component: Component = SMALL) -> tuple[int, tuple[int, ...]]:
    """Check bytes as a file; give what ``content.check`` gives."""
    return content.check(on_disk(data), component)


@given(DTYPES, st.lists(st.integers(0, 10**6), max_size=3).map(tuple))
def test_headers_are_written_as_numpy_writes_them(dtype: str, shape: tuple[int, ...]) -> None:
    assert npy.header_bytes(dtype, shape) == stores.npy_header(dtype, shape)


@given(DTYPES, SHAPES, st.sampled_from([(1, 0), (2, 0)]))
def test_headers_of_numpy_are_read(
    dtype: str, shape: tuple[int, ...], version: tuple[int, int]
) -> None:
    data = write_header(dtype, shape, version)
    assert npy.parse(data) == npy.Header(dtype, False, shape, len(data))


@pytest.mark.parametrize(
    "component", SPECIFICATION.components, ids=lambda component: component.name
)
def test_an_array_of_the_recipe_is_valid(component: Component) -> None:
    shape = component.shape_for(64, 32)
    data = stores.npy(np.zeros(shape, component.dtype))
    assert check(data, component) == (len(data), shape)


GOOD = stores.npy(np.arange(12, dtype="<f2").reshape(3, 4))


@given(st.integers(0, len(GOOD) - 1))
@settings(max_examples=len(GOOD))
def test_a_file_cut_anywhere_is_refused(length: int) -> None:
    with pytest.raises(BadArrayError) as caught:
        check(GOOD[:length])
    assert caught.value.reason in ("empty", "not_npy", "truncated")


@given(st.binary(min_size=1, max_size=300))
@settings(max_examples=50)
def test_bytes_after_the_data_are_refused(more: bytes) -> None:
    with pytest.raises(BadArrayError, match="trailing_bytes"):
        check(GOOD + more)


@given(st.lists(st.tuples(st.integers(0, 127), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
@example([(6, 2)])
@example([(7, 1)])
@example([(69, 0x0B)])
@example([(100, 0xA0)])
@example([(8, 255), (9, 255)])
def test_a_mutated_header_is_refused_or_still_means_the_same(
    changes: list[tuple[int, int]],
) -> None:
    data = bytearray(GOOD)
    for position, byte in changes:
        data[position] = byte
    array_file(bytes(data))


LITERALS = st.recursive(
    st.sampled_from(
        ["1", "-1", "True", "None", "'<f2'", "'|O'", "'descr'", "'shape'", "(3, 4)", "1j", "b''"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, max_size=3).map(lambda items: f"({''.join(i + ',' for i in items)})"),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: f"{{{', '.join(items)}}}"),
        st.lists(st.tuples(inner, inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
        ),
        st.tuples(inner, inner).map(lambda pair: f"{pair[0]} + {pair[1]}"),
    ),
    max_leaves=8,
)


@given(
    st.one_of(
        LITERALS,
        st.builds(
            "{{'descr': {}, 'fortran_order': {}, 'shape': {}}}".format, LITERALS, LITERALS, LITERALS
        ),
    )
)
@settings(max_examples=150, deadline=None)
@example("{[]: 1}")
@example("(" * 1500)
@example("9" * 4000)
@example("-" * 3000 + "1")
@example("'\\x")
@example("__import__('os').abort()")
def test_any_header_text_is_read_or_refused(text: str) -> None:
    padded = text.encode().ljust(117) + b"\n"
    start = npy.MAGIC + b"\x01\x00" + len(padded).to_bytes(2, "little") + padded
    try:
        header = npy.parse(start)
    except BadArrayError:
        return
    assert isinstance(header.dtype, str)
    assert isinstance(header.fortran_order, bool)
    assert all(side >= 0 for side in header.shape)


@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadArrayError):
        check(data)
    with pytest.raises(BadArrayError):
        check(npy.MAGIC + data)


def test_a_header_longer_than_numpys_is_read() -> None:
    fields = b"{'descr': '<f2', 'fortran_order': False, 'shape': (3, 4)}".ljust(1013) + b"\n"
    data = npy.MAGIC + b"\x01\x00" + len(fields).to_bytes(2, "little") + fields + GOOD[128:]
    assert check(data) == (len(data), (3, 4))
    assert np.load(io.BytesIO(data)).tolist() == np.arange(12).reshape(3, 4).tolist()
    with pytest.raises(BadArrayError, match="truncated"):
        check(data[:600])


def test_a_header_shorter_than_numpys_is_read() -> None:
    fields = b"{'descr': '<f2', 'fortran_order': False, 'shape': (3, 4)}\n"
    data = npy.MAGIC + b"\x01\x00" + len(fields).to_bytes(2, "little") + fields + GOOD[128:]
    assert check(data) == (len(data), (3, 4))


def test_an_enormous_claim_allocates_nothing() -> None:
    for shape in ((3, 10**12), (3, 2**63), (3, 10**30)):
        with pytest.raises(BadArrayError, match="truncated"):
            check(stores.npy_header("<f2", shape) + bytes(24))


def test_what_is_not_there_is_missing(tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(BadArrayError, match="missing"):
        npy.open_array(os.path.join(tmp_path, "nothing.npy"))
