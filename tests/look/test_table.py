"""The table of all samples: searching, filtering and sorting, against plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.looking.table import Builder, Query, Table

texts = st.text(st.sampled_from("abcÀß \n\x00İ"), max_size=8)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "image_id": st.uuids().map(str),
            "caption": texts,
            "state": st.sampled_from(("ready", "x")),
        },
        optional={
            "aspect_bucket": st.sampled_from(("64x64", "96x64")),
            "enlarged": st.none() | st.floats(1, 4),
            "score": st.none() | st.integers(-9, 9) | st.floats(-9, 9),
            "mixed": st.integers() | st.text() | st.lists(st.integers()),
        },
    ),
    min_size=1,
    max_size=12,
)


def table(found: list[dict[str, Any]], size: int = 5) -> Table:
    builder = Builder()
    for start in range(0, len(found), size):
        builder.add(found[start : start + size])
    return builder.table()


@given(rows, st.text(st.sampled_from("abcàßi̇ "), max_size=3))
def test_words_are_found_wherever_they_are_in_a_caption(
    found: list[dict[str, Any]], text: str
) -> None:
    chosen = table(found).select(Query(text=text)).tolist()
    wanted = [
        number
        for number, row in enumerate(found)
        if all(word.lower() in row["caption"].lower() for word in text.split())
    ]
    assert chosen == wanted


@given(rows, st.sampled_from(("asc", "desc")))
def test_sorting_by_a_number_puts_unknown_ones_last_in_both_orders(
    found: list[dict[str, Any]], order: str
) -> None:
    made = table(found)
    if "score" not in made.numbers:
        return
    values = [found[n].get("score") for n in made.select(Query(sort="score", order=order)).tolist()]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=order == "desc")
    assert values[: len(known)] == known


@given(rows)
def test_what_is_not_a_number_is_unknown_in_a_column_of_numbers(
    found: list[dict[str, Any]],
) -> None:
    made = table(found)
    wanted = {n: row["mixed"] for n, row in enumerate(found) if type(row.get("mixed")) is int}
    wanted = {n: value for n, value in wanted.items() if abs(value) < 1e15}
    column = made.numbers.get("mixed", np.full(len(found), np.nan))
    assert {n: int(column[n]) for n in np.flatnonzero(~np.isnan(column)).tolist()} == wanted
    assert "caption" not in made.columns


@given(rows)
def test_a_flag_marks_what_its_number_says(found: list[dict[str, Any]]) -> None:
    made = table(found)
    much = [n for n, row in enumerate(found) if (row.get("enlarged") or 0) > 1.25]
    assert made.select(Query(flag="enlarged")).tolist() == much


def test_filters_hold_together_and_an_unknown_name_finds_nothing() -> None:
    made = table(
        [
            {"image_id": f"i{n}", "caption": "x", "state": "ready", "aspect_bucket": f"{n % 2}x1"}
            for n in range(6)
        ]
    )
    assert made.select(Query(bucket="1x1", id="I3")).tolist() == [3]
    for query in (Query(bucket="9x9"), Query(flag="odd"), Query(part="val"), Query(other="both")):
        assert made.select(query).tolist() == []
    assert made.select(Query(sort="nothing")).tolist() == list(range(6))


def test_hostile_records_do_not_fill_the_memory_or_fail() -> None:
    wild: list[dict[str, Any]] = [
        {"image_id": None, "caption": 7, "state": "ready", "big": 10**400, "nan": math.nan},
        {
            "image_id": "x",
            "caption": "\ud800",
            "state": "ready",
            **{f"c{n}": n for n in range(500)},
        },
    ]
    made = table(wild)
    assert made.ids == ["", "x"]
    assert len(made.numbers) <= 64
    assert "big" not in made.numbers
    assert made.select(Query(text="\ud800")).tolist() == [1]
    assert np.isnan(made.numbers["c0"][0])
