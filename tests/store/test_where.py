"""Conditions on records: what they mean, and that no text does more than be refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwright import UsageError
from shardwright.store.where import Compare, Condition, Joined, conditions, parse

RECORD = {
    "image_id": "cat-1",
    "caption": "A cat on a mat",
    "width": 832,
    "height": 1216,
    "aspect_bucket": "832x1216",
    "rating": "4.5",  # as a CSV has it
    "good": "True",
    "checked": False,
    "tags": ["a", "b"],
    "my column": "x`y",
    "bucket": "of water",
    "nothing": None,
}


@pytest.mark.parametrize(
    "text",
    [
        "width = 832",
        "width == 832.0",
        "width >= 512 and height > 1000",
        "width < 512 or height > 1000",
        'caption ~ "cat"',
        r'caption ~ "\bcat\b"',
        "caption !~ 'dog'",
        'caption ~ "(?i)CAT"',
        'bucket = "832x1216"',
        'aspect_bucket in ("1024x1024", "832x1216")',
        "`bucket` ~ 'water'",
        "`my column` = 'x`y'",
        "rating >= 4 and rating < 5",
        'rating = "4.5"',
        "good = true",
        "checked = false",
        "checked != true",
        "not (width = 1 or height = 1)",
        "not width = 1 and not height = 1",
        "width = 1 and height = 1 or width = 832",
        'image_id > "cat"',
        "nothing = null",
        "nowhere = null",
        "caption != null",
        "nowhere != 1",
        'nowhere !~ "x"',
        "not nowhere = 1",
        "width in (1, 832, 'x')",
        "width = '832'",
        "width in ('831', '832')",
        "width > '9'",
        "rating != '4.50'",  # two texts
        "width != 'x'",
        "tags != 'a'",
        "NOT width IN (1, 2) AND width > -1",
    ],
)
def test_it_holds(text: str) -> None:
    assert parse(text).holds(RECORD)
    assert not Joined("not", (parse(text),)).holds(RECORD)


@pytest.mark.parametrize(
    "text",
    [
        "width != 832",
        "width != '832'",
        "width != ' 832.0 '",
        "width < '9'",
        "checked != 'false'",
        "width > 'a'",
        "nowhere = 1",
        "nowhere < 1",
        "nowhere >= 0",
        'nowhere ~ ""',
        "nowhere in (1, 'x')",
        "nothing = 'x'",
        "nothing = '0'",
        "nothing != null",
        "caption < 5",
        "caption = 0",
        "checked = 0",
        "checked < 1",
        "width = true",
        "tags = 'a'",
        'tags ~ "a"',
        "width = 1 and (height = 1 or width = 832)",
    ],
)
def test_it_does_not_hold(text: str) -> None:
    assert not parse(text).holds(RECORD)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected the name of a field at its end; write for example width >= 512"),
        ("width", "expected a comparison at its end; write one of = == != ~ !~ < <= > >= in"),
        ("width >> 5", "expected a value at character 8, '> 5'; write a number"),
        ("width > 5 height = 2", "expected and/or at character 11, 'height = 2'"),
        ("(width > 5", "expected ) at its end"),
        ("width in 5", "expected ( at character 10"),
        ("width < null", "null has no order at character 9"),
        ("caption ~ 5", "expected text in quotes at character 11"),
        ('caption ~ "("', "expected a regular expression (missing ), unterminated"),
        ('caption ~ "[[a"', "expected a regular expression (Possible nested set"),
        ('caption ~ "cat', "the quote is not closed at character 11"),
        ("width = 5px", "expected text in quotes at character 9, '5px'; put odd"),
        ("width = 1e999", "expected a value at character 9"),
        ("__import__('os')", "expected a comparison at character 11"),
        ("and = 1", "expected the name of a field at character 1"),
        ("(" * 100 + "a = 1" + ")" * 100, "is nested too deep at character 41"),
        ("not " * 100 + "a = 1", "is nested too deep"),
        ("a = 1 or " * 1000 + "a = 1", "has 9,005 characters"),
    ],
)
def test_a_mistake_is_reported_with_its_place(text: str, said: str) -> None:
    with pytest.raises(UsageError) as told:
        parse(text)
    assert said in str(told.value)
    assert str(told.value).startswith("--where: ")


def test_every_term_of_a_conjunction_is_a_condition_of_its_own() -> None:
    found = conditions(["width >= 512 and caption ~ 'cat'", "a = 1 or b = 2", "width >= 512"])
    assert list(map(str, found)) == ["width >= 512", 'caption ~ "cat"', "a = 1 or b = 2"]
    assert len(conditions(["a = true", "a = 1", "a = 1.0"])) == 3


names = st.text(min_size=1, max_size=5) | st.sampled_from(["width", "and", "bucket", "null", "`"])
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=8) | st.text(alphabet="\\\"'`a", max_size=6)
values = st.none() | st.booleans() | numbers | texts
compares: st.SearchStrategy[Condition] = (
    st.builds(Compare, names, st.sampled_from(["=", "!="]), values)
    | st.builds(Compare, names, st.sampled_from(["<", "<=", ">", ">="]), numbers | texts)
    | st.builds(Compare, names, st.sampled_from(["~", "!~"]), st.sampled_from(["a", "\\d", '"']))
    | st.builds(Compare, names, st.just("in"), st.lists(values, min_size=1, max_size=3).map(tuple))
)


def several(word: str, inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make conditions of two or more terms, none of which is joined by the same word."""
    others = inner.filter(lambda term: getattr(term, "word", None) != word)
    return st.lists(others, min_size=2, max_size=3).map(lambda found: Joined(word, tuple(found)))


def opposite(term: Condition) -> Condition:
    return Joined("not", (term,))


trees = st.recursive(
    compares,
    lambda inner: inner.map(opposite) | several("and", inner) | several("or", inner),
    max_leaves=6,
)


@given(trees)
def test_a_condition_is_the_same_after_printing_and_parsing(condition: Condition) -> None:
    again = parse(str(condition))
    assert repr(again) == repr(condition)
    assert pickle.loads(pickle.dumps(condition)) == condition


words = st.sampled_from(["a", "`b c`", "=", "<", "~", "in", "(", ")", ",", "not", "and", "or", "1"])
soup = st.lists(words | texts | st.sampled_from(['"x"', "'(", "null"]), max_size=12).map(" ".join)


@given(soup | st.text(), st.dictionaries(names, values | st.lists(values, max_size=1), max_size=3))
@example("a ~ 'a{99999999999}'", {})
@example(f"a = {'9' * 3900}", {"a": "9" * 5000})
@example("a ~ '" + "(" * 3000 + "'", {})
def test_any_text_is_a_condition_or_refused(text: str, record: dict[str, Any]) -> None:
    try:
        condition = parse(text)
    except UsageError:
        return
    assert condition.holds(record) in (True, False)
