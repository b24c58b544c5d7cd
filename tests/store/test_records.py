"""Lines and records: a line ends at a line feed and nowhere else, and types are taken strictly."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from shardwright.recipes import SPECIFICATION
from shardwright.store import records
from shardwright.store.faults import HARMLESS, RECORD_FAULTS, Rules
from shardwright.store.records import LONGEST_LINE, BadRecordError

BYTES = st.binary(max_size=200)
PIECES = st.lists(
    st.sampled_from(
        [
            *(b"\n", b"\r\n", b"\r", b" ", b"\t", b"\x0b", b"\x0c", b"\x1c", b"\x00"),
            *(b"\xe2\x80\xa8", b"\xc2\x85", b"\xef\xbb\xbf", b"\xff", b"a", b'{"b": 1}'),
        ]
    ),
    max_size=30,
).map(b"".join)


@given(BYTES | PIECES)
@settings(max_examples=150)
@example(b"\xef\xbb\xbf")
@example(b"\xef\xbb\xbf\n\xef\xbb\xbfa")
@example(b"a\n\n\nb")
def test_lines_are_split_as_bytes_at_line_feeds(data: bytes) -> None:
    expected = []
    offset = 0
    for number, piece in enumerate(data.split(b"\n"), 1):
        mark = 3 if number == 1 and piece.startswith(b"\xef\xbb\xbf") else 0
        text = piece[mark:].rstrip(b"\r")
        if text.strip():
            expected.append((number, offset + mark, text))
        offset += len(piece) + 1
    assert [astuple(line) for line in records.lines(io.BytesIO(data))] == expected


@given(BYTES | PIECES)
def test_a_line_is_found_again_at_its_offset(data: bytes) -> None:
    for line in records.lines(io.BytesIO(data)):
        assert line.data is not None
        assert data[line.offset : line.offset + len(line.data)] == line.data


class Endless(io.RawIOBase):
    """A file of one byte repeated, with line feeds at given places; it costs no memory."""

    def __init__(self, length: int, *feeds: int) -> None:
        self.length, self.feeds, self.position = length, feeds, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        count = min(len(buffer), self.length - self.position)
        buffer[:count] = b"x" * count
        for feed in self.feeds:
            if self.position <= feed < self.position + count:
                buffer[feed - self.position] = 10
        self.position += count
        return count


@pytest.mark.parametrize(
    ("length", "is_data"),
    [(LONGEST_LINE - 1, True), (LONGEST_LINE, False), (2 * LONGEST_LINE + 5, False)],
)
def test_a_line_that_is_too_long_is_passed_over(length: int, is_data: bool) -> None:
    file = io.BufferedReader(Endless(length + 8, 1, length + 2), 1 << 20)
    found = [
        (line.number, line.offset, None if line.data is None else len(line.data))
        for line in records.lines(file)
    ]
    assert found == [(1, 0, 1), (2, 2, length if is_data else None), (3, length + 3, 5)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(BYTES | PIECES | JSON.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=150, deadline=None)
def test_any_line_is_a_record_or_a_named_problem(line: bytes) -> None:
    try:
        expected = json.loads(line)
    except ValueError:
        expected = None
    try:
        record = records.parse(line)
    except BadRecordError as error:
        problem: str | None = error.reason
    else:
        problem = None
        assert record == expected
    assert problem in (None, "not_json", "not_an_object")
    if isinstance(expected, dict) and "NaN" not in str(line) and "Infinity" not in str(line):
        assert problem is None or b"\\ud" in line  # json lets a surrogate stand alone


RULES = Rules(SPECIFICATION)
FIELDS = st.sampled_from(
    ["image_id", "aspect_bucket", "caption", "t5_attention_mask", "image_path", "height", "width"]
)


@given(st.dictionaries(FIELDS, JSON | st.sampled_from(["8x8", 8, [1] * 77])))
@settings(max_examples=150, deadline=None)
def test_any_record_is_ready_or_has_a_named_problem(record: dict[str, Any]) -> None:
    problem = RULES.problem(record)
    assert problem is None or problem in RECORD_FAULTS.keys() - HARMLESS


def test_brackets_in_strings_are_no_nesting() -> None:
    fields = {"caption": "[{" * 500, "list": [[]] * 500}
    assert records.parse(json.dumps(fields).encode()) == fields


@pytest.mark.parametrize(("depth", "ready"), [(99, True), (100, False), (500, False)])
def test_nesting_is_limited(depth: int, ready: bool) -> None:
    line = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    if ready:
        assert "a" in records.parse(line)
    else:
        with pytest.raises(BadRecordError, match="nested_too_deep"):
            records.parse(line)


def naive_is_mask(mask: object) -> bool:
    return (
        type(mask) is list
        and len(mask) == 77
        and all(type(value) is int and value in (0, 1) for value in mask)
    )


ELEMENTS = st.sampled_from([0, 1, 0, 1, 2, -1, 10, True, False, 0.0, 1.0, "1", "0", None, [], [1]])


@given(
    st.lists(st.integers(0, 1), min_size=76, max_size=78)
    | st.lists(ELEMENTS, min_size=77, max_size=77)
    | st.tuples(st.lists(st.integers(0, 1), min_size=76, max_size=76), ELEMENTS).map(
        lambda parts: [*parts[0], parts[1]]
    )
    | JSON
)
@settings(max_examples=200, deadline=None)
@example([1] * 77)
@example([True] + [1] * 76)
@example([10] + [1] * 75)  # as many characters as a mask has
@example([[]] * 51 + [1])
@example([""] * 77)
def test_a_mask_is_what_the_naive_definition_says(mask: object) -> None:
    assert records.is_mask(mask, SPECIFICATION.masks[0]) == naive_is_mask(mask)


VALID: dict[str, Any] = {
    "image_id": "a",
    "image_path": "a.jpg",
    "caption": "a cat",
    "t5_attention_mask": [1] * 77,
    "height": 8,
    "width": 8,
    "aspect_bucket": "8x8",
}
CHANGES = st.dictionaries(
    FIELDS | st.just("own"),
    JSON | st.sampled_from([" ", "..", "a/b", "ä" * 126, 0, 1.0, [1] * 76 + [True], "8x08"]),
    max_size=2,
)


@given(CHANGES, st.sets(FIELDS, max_size=1), st.sampled_from([None, 1]))
@settings(max_examples=300, deadline=None)
@example({"own": [float("nan")]}, set(), None)
def test_the_essentials_are_those_of_a_record_with_no_problem(
    changes: dict[str, Any], missing: set[str], indent: int | None
) -> None:
    record = {name: value for name, value in (VALID | changes).items() if name not in missing}
    line = json.dumps(record, indent=indent).encode()  # white space in a line is any but its end
    found = RULES.essentials(line)
    try:
        parsed = records.parse(line)
    except BadRecordError:
        assert found is None
        return
    assert (found is None) == (RULES.problem(parsed) is not None)
    if found is not None:
        assert found.image_id == parsed["image_id"]
        assert found.aspect_bucket == parsed["aspect_bucket"]


def test_what_the_essentials_pass_over_is_refused_when_the_record_is_read() -> None:
    deep = b"[" * 200 + b"]" * 200
    for own, reason in ((b"1e999", "not_json"), (deep, "nested_too_deep")):
        line = json.dumps(VALID).encode()[:-1] + b', "own": ' + own + b"}"
        assert RULES.essentials(line) is not None
        with pytest.raises(BadRecordError, match=reason):
            records.parse(line)


def test_text_that_is_not_utf8_has_no_essentials() -> None:
    line = json.dumps(VALID).encode()[:-1] + b', "own": "\xff"}'
    assert RULES.essentials(line) is None
