"""Conditions on the fields of a record: ``width >= 512 and caption ~ "cat"``.

Text becomes tokens, tokens become frozen values, and these look at one record at a time. Nothing of
a condition is ever run as code.
"""

from __future__ import annotations

import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardwright.errors import UsageError
from shardwright.store.records import Record

Value = str | int | float | bool | None

_LONGEST = 4000  # characters
_DEEPEST = 40  # parentheses and nots inside each other
_SHOWN = 20  # of them, in an error
_LONGEST_NUMBER = 400  # characters of a text that is compared as a number
_CONSTANTS: dict[str, Value] = {"true": True, "false": False, "null": None}
_KEYWORDS = ("and", "or", "not", "in", *_CONSTANTS)
ALIASES = {"bucket": "aspect_bucket"}  # in backticks it is a column of that name
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<number>{_NUMBER})(?![\w.])
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<column>`(?:[^`]|``)+`)
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=|>=|==|!=|!~|[=<>~(),])
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_BARE = re.compile(r"[^\W\d]\w*")
_IS_NUMBER = re.compile(_NUMBER)
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SIGNS = ("=", "==", "!=", "~", "!~", *_ORDERS)


@dataclass(frozen=True)
class Compare:
    """A field compared with a value, by one of ``= != < <= > >= ~ !~``."""

    field: str
    sign: str
    value: Value

    def holds(self, record: Record) -> bool:
        """Whether it holds for a record; a missing field is null."""
        have = record.get(self.field)
        if self.sign.endswith("~"):
            if isinstance(have, int | float) and not isinstance(have, bool):
                have = str(have)  # a column of a CSV that is all numbers has numbers
            found = isinstance(have, str) and re.search(str(self.value), have) is not None
            return found is (self.sign == "~")
        alike = _alike(have, self.value)
        if self.sign in _ORDERS:
            return alike is not None and _ORDERS[self.sign](*alike)
        equal = have is None if self.value is None else alike is not None and operator.eq(*alike)
        return equal is (self.sign == "=")

    def __str__(self) -> str:
        return f"{_field(self.field)} {self.sign} {_value(self.value)}"


@dataclass(frozen=True)
class In:
    """A field that equals one of several values."""

    field: str
    values: tuple[Value, ...]

    def holds(self, record: Record) -> bool:
        """Whether it holds for a record."""
        return any(Compare(self.field, "=", value).holds(record) for value in self.values)

    def __str__(self) -> str:
        return f"{_field(self.field)} in ({', '.join(map(_value, self.values))})"


@dataclass(frozen=True)
class Not:
    """The opposite of a condition."""

    term: Condition

    def holds(self, record: Record) -> bool:
        """Whether it holds for a record."""
        return not self.term.holds(record)

    def __str__(self) -> str:
        return f"not {_inner(self.term, (All, Some))}"


@dataclass(frozen=True)
class All:
    """Conditions that must all hold."""

    terms: tuple[Condition, ...]

    def holds(self, record: Record) -> bool:
        """Whether it holds for a record."""
        return all(term.holds(record) for term in self.terms)

    def __str__(self) -> str:
        return " and ".join(_inner(term, (All, Some)) for term in self.terms)


@dataclass(frozen=True)
class Some:
    """Conditions of which at least one must hold."""

    terms: tuple[Condition, ...]

    def holds(self, record: Record) -> bool:
        """Whether it holds for a record."""
        return any(term.holds(record) for term in self.terms)

    def __str__(self) -> str:
        return " or ".join(_inner(term, (Some,)) for term in self.terms)


Condition = Compare | In | Not | All | Some


def parse(text: str) -> Condition:
    """Read a condition, or raise UsageError with the place of the mistake."""
    if len(text) > _LONGEST:
        fix = f"give at most {_LONGEST:,} characters; --exclude-ids-file takes a list of any length"
        raise UsageError(f"--where: has {len(text):,} characters", fix=fix)
    return _Parser(text).parse()


def conditions(texts: Iterable[str]) -> list[Condition]:
    """Read conditions that must all hold, and give their terms."""
    parsed = map(parse, texts)
    terms = (t for one in parsed for t in (one.terms if isinstance(one, All) else (one,)))
    return list({str(term): term for term in terms}.values())


def fields(condition: Condition) -> Iterator[str]:
    """Name the fields that a condition looks at."""
    if isinstance(condition, Compare | In):
        yield condition.field
    else:
        for term in (condition.term,) if isinstance(condition, Not) else condition.terms:
            yield from fields(term)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int  # where it begins
    next: int  # where the next one begins


class _Parser:
    """Reads one token after the other, each rule by a method."""

    def __init__(self, text: str) -> None:
        self._text, self._depth = text, 0
        self._token = self._read(0)

    def parse(self) -> Condition:
        """Read all of the text."""
        found = self._some()
        if self._token.kind != "end":
            raise self._error("expected and/or", "join conditions with and/or")
        return found

    def _some(self) -> Condition:
        terms = [self._all()]
        while self._take("or"):
            terms.append(self._all())
        return terms[0] if len(terms) == 1 else Some(tuple(terms))

    def _all(self) -> Condition:
        terms = [self._one()]
        while self._take("and"):
            terms.append(self._one())
        return terms[0] if len(terms) == 1 else All(tuple(terms))

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("is nested too deep", f"use at most {_DEEPEST} levels")
        if self._take("not"):
            found: Condition = Not(self._one())
        elif self._take("("):
            found = self._some()
            self._need(")")
        else:
            found = self._compare()
        self._depth -= 1
        return found

    def _compare(self) -> Condition:
        field = self._field()
        if self._take("in"):
            self._need("(")
            values = [self._value()]
            while self._take(","):
                values.append(self._value())
            self._need(")")
            return In(field, tuple(values))
        sign = self._token.text
        if self._token.kind != "sign" or sign not in _SIGNS:
            raise self._error("expected a comparison", f"write one of {' '.join(_SIGNS)} in")
        self._token = self._read(self._token.next)
        there = self._token
        value = self._value()
        if sign.endswith("~") and (fault := _pattern_fault(value)):
            fix = 'give a regular expression, for example "cat|dog"'
            raise self._error(fault, fix, there)
        if sign in _ORDERS and (value is None or isinstance(value, bool)):
            raise self._error(f"{there.text} has no order", "use = or !=", there)
        return Compare(field, "=" if sign == "==" else sign, value)

    def _field(self) -> str:
        kind, text, *_ = self._token
        if kind == "column":
            name = text[1:-1].replace("``", "`")
        elif kind == "word" and text.lower() not in _KEYWORDS:
            name = ALIASES.get(text, text)
        else:
            raise self._error("expected the name of a field", "write for example width >= 512")
        self._token = self._read(self._token.next)
        return name

    def _value(self) -> Value:
        kind, text, *_ = self._token
        if kind == "word" and text.lower() in _CONSTANTS:
            value = _CONSTANTS[text.lower()]
        elif kind == "number" and math.isfinite(float(text)):
            value = _number(text)
        elif kind == "text":
            value = re.sub(rf"\\([\\{text[0]}])", r"\1", text[1:-1])
        else:
            fix = 'write a number, "text", true, false or null'
            raise self._error("expected a value", fix)
        self._token = self._read(self._token.next)
        return value

    def _take(self, text: str) -> bool:
        """Go on if this word or sign is next."""
        found = self._token.kind in ("word", "sign") and self._token.text.lower() == text
        if found:
            self._token = self._read(self._token.next)
        return found

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise self._error(f"expected {text}", f"write {text} here")

    def _read(self, at: int) -> _Token:
        match = _TOKEN.match(self._text, at)
        if match is None:
            at += len(self._text[at:]) - len(self._text[at:].lstrip())
            odd = self._text[at]
            what, fix = "expected text in quotes", "put odd names of columns into backticks"
            if odd in "\"'`":
                what, fix = "the quote is not closed", "end it with the quote that it begins with"
            raise self._error(what, fix, _Token("", odd, at, at))
        kind = str(match.lastgroup)
        return _Token(kind, match[kind], match.start(kind), match.end())

    def _error(self, what: str, fix: str, token: _Token | None = None) -> UsageError:
        at = (token or self._token).at
        rest = self._text[at : at + _SHOWN]
        place = f"at character {at + 1}, {rest!r}" if rest else "at its end"
        return UsageError(f"--where: {what} {place}", fix=fix)


def _pattern_fault(value: Value) -> str | None:
    if not isinstance(value, str):
        return "expected text in quotes"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a pattern that may mean something else one day
            re.compile(value)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        return f"expected a regular expression ({error})"
    return None


def _alike(have: object, value: Value) -> tuple[Any, Any] | None:
    """Give what a record has and a value as one type, or None: a CSV has only texts."""
    pair = _as(have, value), _as(value, have)
    kinds = set(map(_kind, pair))
    return pair if len(kinds) == 1 and None not in kinds else None


def _kind(one: object) -> type | None:
    """Give the type that a value is compared as; a bool is no number."""
    kinds = (bool, float, str)
    number = isinstance(one, int) and not isinstance(one, bool)
    return float if number else next((kind for kind in kinds if isinstance(one, kind)), None)


def _as(one: object, other: object) -> object:
    """Read a text as the type of another value, or give None; others stay as they are."""
    if not isinstance(one, str) or isinstance(other, str):
        return one
    text = one.strip()
    if isinstance(other, bool):
        return _CONSTANTS.get(text.lower())
    short = len(text) <= _LONGEST_NUMBER
    return _number(text) if short and _IS_NUMBER.fullmatch(text) else None


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _field(name: str) -> str:
    plain = _BARE.fullmatch(name) and name.lower() not in _KEYWORDS and name not in ALIASES
    return name if plain else f"`{name.replace('`', '``')}`"


def _value(value: Value) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if value is None or isinstance(value, bool):
        return next(name for name, one in _CONSTANTS.items() if one is value)
    return repr(value)


def _inner(term: Condition, lower: tuple[type, ...]) -> str:
    """Write a term, in parentheses where it binds less than what is around it."""
    return f"({term})" if isinstance(term, lower) else str(term)
