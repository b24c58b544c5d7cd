"""Errors say what happened in words and as attributes, and pass between processes."""

from __future__ import annotations

import pickle

import pytest

from shardwright import errors
from shardwright.errors import ShardwrightError

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ShardwrightError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_keeps_its_parts_between_processes(kind: type[ShardwrightError]) -> None:
    for parts, words in (
        (("is bad", "/a.tar", "pack again"), "/a.tar: is bad; pack again"),
        (("is bad", "/a.tar", None), "/a.tar: is bad"),
        (("is bad", None, None), "is bad"),
    ):
        what, path, fix = parts
        error = pickle.loads(pickle.dumps(kind(what, path=path, fix=fix)))
        assert type(error) is kind
        assert (error.what, error.path, error.fix) == parts
        assert str(error) == words
