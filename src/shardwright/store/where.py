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
from typing import Any

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
    """A field compared with a value, by one of ``= != < <= > >= ~ !~``; or ``in`` several."""

    field: str
    sign: str
    value: Value | tuple[Value, ...]

    def holds(self, record: Record) -> bool:
        """Whether it holds for a record; a missing field is null."""
        have, value = record.get(self.field), self.value
        if isinstance(value, tuple):
            return any(_equal(have, one) for one in value)
        if self.sign.endswith("~"):
            if isinstance(have, int | float) and not isinstance(have, bool):
                have = str(have)  # a column of a CSV that is all numbers has numbers
            found = isinstance(have, str) and re.search(str(value), have) is not None
            return found is (self.sign == "~")
        if self.sign in _ORDERS:
            alike = _alike(have, value)
            return alike is not None and _ORDERS[self.sign](*alike)
        return _equal(have, value) is (self.sign == "=")

    def fields(self) -> Iterator[str]:
        """Name the field that it looks at."""
        yield self.field

    def __str__(self) -> str:
        value = self.value
        listed = f"({', '.join(map(_value, value))})" if isinstance(value, tuple) else _value(value)
        return f"{_field(self.field)} {self.sign} {listed}"


@dataclass(frozen=True)
class Joined:
    """Conditions that must all hold (``and``), one of which must (``or``), or not the one."""

    word: str
    terms: tuple[Condition, ...]

    def holds(self, record: Record) -> bool:
        """Whether it holds for a record."""
        each = (term.holds(record) for term in self.terms)
        if self.word == "not":
            return not all(each)
        return all(each) if self.word == "and" else any(each)

    def fields(self) -> Iterator[str]:
        """Name the fields that it looks at."""
        for term in self.terms:
            yield from term.fields()

    def __str__(self) -> str:
        # A term is in parentheses where it binds no more than what is around it.
        lower = ("or",) if self.word == "or" else ("and", "or")
        terms = [
            f"({term})" if isinstance(term, Joined) and term.word in lower else str(term)
            for term in self.terms
        ]
        return f"not {terms[0]}" if self.word == "not" else f" {self.word} ".join(terms)


Condition = Compare | Joined


def parse(text: str) -> Condition:
    """Read a condition, or raise UsageError with the place of the mistake."""
    if len(text) > _LONGEST:
        fix = f"give at most {_LONGEST:,} characters; --exclude-ids-file takes a list of any length"
        raise UsageError(f"--where: has {len(text):,} characters", fix=fix)
    return _Parser(text).parse()


def conditions(texts: Iterable[str]) -> list[Condition]:
    """Read conditions that must all hold, and give their terms."""
    found: dict[str, Condition] = {}
    for one in map(parse, texts):
        terms = one.terms if isinstance(one, Joined) and one.word == "and" else (one,)
        found |= {str(term): term for term in terms}
    return list(found.values())


class _Parser:
    """Reads one token after the other, each rule by a method."""

    def __init__(self, text: str) -> None:
        self._text, self._depth, self._end = text, 0, 0
        self._advance()

    def _advance(self) -> None:
        """Read the next token: its kind, its word and where it begins."""
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            rest = self._text[self._end :].lstrip()
            self._at = len(self._text) - len(rest)
            if rest[0] in "\"'`":
                fix = "end it with the quote that it begins with"
                raise self._error("the quote is not closed", fix)
            raise self._error("expected text in quotes", "put odd names of columns into backticks")
        self._kind = str(match.lastgroup)
        self._word, self._at, self._end = match[self._kind], match.start(self._kind), match.end()

    def parse(self) -> Condition:
        """Read all of the text."""
        found = self._some()
        if self._kind != "end":
            raise self._error("expected and/or", "join conditions with and/or")
        return found

    def _some(self) -> Condition:
        return self._joined("or", self._all)

    def _all(self) -> Condition:
        return self._joined("and", self._one)

    def _joined(self, word: str, read: Callable[[], Condition]) -> Condition:
        terms = [read()]
        while self._take(word):
            terms.append(read())
        return terms[0] if len(terms) == 1 else Joined(word, tuple(terms))

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("is nested too deep", f"use at most {_DEEPEST} levels")
        if self._take("not"):
            found: Condition = Joined("not", (self._one(),))
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
            return Compare(field, "in", tuple(values))
        sign = self._word
        if self._kind != "sign" or sign not in _SIGNS:
            raise self._error("expected a comparison", f"write one of {' '.join(_SIGNS)} in")
        self._advance()
        word, at = self._word, self._at
        value = self._value()
        if sign.endswith("~") and (fault := _pattern_fault(value)):
            raise self._error(fault, 'give a regular expression, for example "cat|dog"', at)
        if sign in _ORDERS and (value is None or isinstance(value, bool)):
            raise self._error(f"{word} has no order", "use = or !=", at)
        return Compare(field, "=" if sign == "==" else sign, value)

    def _field(self) -> str:
        if self._kind == "column":
            name = self._word[1:-1].replace("``", "`")
        elif self._kind == "word" and self._word.lower() not in _KEYWORDS:
            name = ALIASES.get(self._word, self._word)
        else:
            raise self._error("expected the name of a field", "write for example width >= 512")
        self._advance()
        return name

    def _value(self) -> Value:
        kind, word = self._kind, self._word
        if kind == "word" and word.lower() in _CONSTANTS:
            value = _CONSTANTS[word.lower()]
        elif kind == "number" and math.isfinite(float(word)):
            value = _number(word)
        elif kind == "text":
            value = re.sub(rf"\\([\\{word[0]}])", r"\1", word[1:-1])
        else:
            fix = 'write a number, "text", true, false or null'
            raise self._error("expected a value", fix)
        self._advance()
        return value

    def _take(self, word: str) -> bool:
        """Go on if this word or sign is next."""
        found = self._kind in ("word", "sign") and self._word.lower() == word
        if found:
            self._advance()
        return found

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise self._error(f"expected {word}", f"write {word} here")

    def _error(self, what: str, fix: str, at: int | None = None) -> UsageError:
        at = self._at if at is None else at
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


def _equal(have: object, value: Value) -> bool:
    alike = _alike(have, value)
    return have is None if value is None else alike is not None and operator.eq(*alike)


def _alike(have: object, value: Value) -> tuple[Any, Any] | None:
    """Give what a record has and a value as one type, or None: a CSV has only texts."""
    one, other = _as(have, value), _as(value, have)
    return (one, other) if (kind := _kind(one)) is not None and kind is _kind(other) else None


def _kind(one: object) -> type | None:
    """Give the type that a value is compared as; a bool is no number."""
    kind = type(one)
    return float if kind is int else kind if kind in (bool, float, str) else None


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
    return next((name for name, one in _CONSTANTS.items() if one is value), repr(value))
