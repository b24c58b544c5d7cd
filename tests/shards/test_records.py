"""The records of a shard in one file: what goes in comes out, and no damage passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright import DamageError, InputMissingError
from shardwright.recipes import SPECIFICATION
from shardwright.shards.format import records
from shardwright.shards.format.records import FACTS, SampleFacts
from shardwright.store.facts import Decoded, Facts, ImageFile
from tests.stores import MASK, Record, record

PATH = Path("x.jsonl")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["t5", "another"])
COUNTS = st.dictionaries(NAMES, st.integers(0, 2**63 - 1))
NUMBERS = st.none() | st.floats(0, 100)
MASKS = st.lists(st.integers(0, 1), min_size=77, max_size=77)
IMAGE = ImageFile("/home/somebody/images/one.png", 12345, 1700000000000000000, "0123456789abcdef")
KNOWN = st.builds(
    Facts,
    image_id=TEXT,
    image=st.none() | st.just(IMAGE),
    tokens_lost=COUNTS,
    cut_at=COUNTS,
    first_id=st.none() | TEXT,
    enlarged=NUMBERS,
    cropped=NUMBERS,
    decoded=st.just(Decoded(24, 16)),
)


def decode(data: bytes) -> list[tuple[Record, SampleFacts]]:
    return list(records.decode(data, PATH, xxhash.xxh3_64_hexdigest(data)))


@given(st.lists(st.tuples(st.dictionaries(TEXT, VALUES, max_size=4), MASKS, KNOWN | st.none())))
@settings(deadline=None, max_examples=100)
def test_lines_that_are_written_are_read_back(
    samples: list[tuple[Record, list[int], Facts | None]],
) -> None:
    fields = [{**own, **record("one"), "t5_attention_mask": mask} for own, mask, _ in samples]
    data = b"".join(
        records.line(one, SPECIFICATION, known)
        for one, (_, _, known) in zip(fields, samples, strict=True)
    )
    assert data.count(b"\n") == len(samples)
    found = decode(data)
    assert len(found) == len(samples)
    for (written, facts), one, (_, mask, known) in zip(found, fields, samples, strict=True):
        own = ("t5_attention_mask", FACTS)
        assert written == {name: value for name, value in one.items() if name not in own}
        assert facts.tokens == {"t5": sum(mask)}
        if known is None:
            assert facts == SampleFacts(facts.tokens)
        else:
            assert (facts.enlarged, facts.cropped) == (known.enlarged, known.cropped)
            lost = {name: count for name, count in known.tokens_lost.items() if name == "t5"}
            cut = {name: count for name, count in known.cut_at.items() if name == "t5"}
            assert (facts.tokens_lost, facts.cut_at) == (lost, cut)


def test_a_line_is_the_member_with_facts_at_their_sorted_place() -> None:
    known = Facts(
        "one",
        IMAGE,
        tokens_lost={"t5": 3, "gone": 1},
        cut_at={"t5": 40},
        first_id="zero",
        enlarged=1.25,
        cropped=0.5,
        colour_space="RGB",
    )
    fields = {**record("one"), "Zoo": [1.5, None], "zebra": "\u2028\n"}
    line = records.line(fields, SPECIFICATION, known)
    del fields["t5_attention_mask"]
    facts = {
        "cropped": 0.5,
        "cut_at": {"t5": 40},
        "enlarged": 1.25,
        "image_xxh3": IMAGE.xxh3,
        "tokens": {"t5": sum(MASK)},
        "tokens_lost": {"t5": 3},
    }
    expected = {**fields, FACTS: facts}
    assert line.decode() == (
        json.dumps(expected, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n"
    )
    assert list(json.loads(line))[:2] == ["Zoo", FACTS]


def test_a_field_of_that_name_is_replaced() -> None:
    line = records.line({**record("one"), FACTS: "of the user"}, SPECIFICATION, None)
    ((_, facts),) = decode(line)
    assert facts == SampleFacts({"t5": sum(MASK)})


def test_any_flipped_bit_or_cut_is_found() -> None:
    data = records.line(record("one"), SPECIFICATION, None) * 2
    checksum = xxhash.xxh3_64_hexdigest(data)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        for damaged in (bytes(flipped), data[:position]):
            with pytest.raises(DamageError, match=r"^x\.jsonl: is damaged; make all shards again"):
                records.decode(damaged, PATH, checksum)


LINE = records.line(record("one"), SPECIFICATION, None)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b"{}\n",
        b"\xff\n",
        b"[" * 100_000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b'{"__facts__":null}\n',
        b'{"__facts__":[]}\n',
        b'{"__facts__":{"tokens":{"t5":"many"}}}\n',
        b'{"__facts__":{"cut_at":7}}\n',
        b'{"__facts__":{"enlarged":"much"}}\n',
    ],
)
def test_what_is_not_a_record_of_a_sample_is_damage(line: bytes) -> None:
    with pytest.raises(DamageError) as told:
        decode(LINE + line)
    assert str(told.value) == (
        "x.jsonl: line 2 is not the record of a sample; make all shards again with --overwrite"
    )


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=100)
def test_any_bytes_raise_only_our_errors(data: bytes) -> None:
    for found in (data, LINE + data, b'{"__facts__":{' + data, LINE.replace(b"{}", data)):
        try:
            decode(found)
        except DamageError:
            continue


def test_facts_that_a_later_version_adds_are_ignored() -> None:
    ((_, facts),) = decode(b'{"image_id":"one","__facts__":{"tokens":{"t5":1},"later":2}}\n')
    assert facts == SampleFacts({"t5": 1})


def test_missing_records_say_how_to_get_them(output: Path) -> None:
    options: tuple[Any, ...] = (output, "bucket_24x16/shard-000000.tar", "0" * 16)
    with pytest.raises(InputMissingError, match=r"shard-000000\.jsonl: .*--overwrite"):
        records.load(*options)
