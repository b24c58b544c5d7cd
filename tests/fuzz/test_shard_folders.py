"""Whatever lies in a shard folder, ``verify`` reports it or raises an error of ours: no other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright import pack
from tests.durability.soak import times
from tests.fuzz.targets import SHARD, looked_at, signed_index, signed_manifest
from tests.stores import make_store, record

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(
        ["../../etc/passwd", "/", "bucket_1x1/shard-000000.tar", "\0", "é.npy", "x" * 200]
    ),
    st.lists(st.integers(0, 3), max_size=2),
)
FUZZ = settings(
    deadline=None,
    max_examples=times(80),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    store = make_store(folder / "derived", [record("one", "24x16"), record("two", "24x16")])
    pack(derived_dir=store.root, output_dir=folder / "shards", workers=1)
    return folder / "shards"


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "shards"))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
    """Give the way to every value within a JSON document."""
    yield path
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))


def changed(document: Any, data: st.DataObject) -> Any:  # noqa: ANN401
    """Put something odd in the place of one value."""
    way = data.draw(st.sampled_from([way for way in leaves(document) if way]))
    holder = document
    for key in way[:-1]:
        holder = holder[key]
    holder[way[-1]] = data.draw(ODD)
    return document


@given(st.data())
@FUZZ
def test_verify_survives_a_wrong_value_in_a_signed_manifest(
    folder: Path, data: st.DataObject
) -> None:
    path = folder / ".shardwright/manifest.json"
    complete = path.read_bytes()
    document = json.loads(complete)
    document.pop("xxh3")
    body = json.dumps(changed(document, data)).encode()[:-1]
    path.write_bytes(signed_manifest(body))
    looked_at(folder)
    path.write_bytes(complete)


@given(st.data(), st.booleans())
@FUZZ
def test_verify_survives_a_wrong_value_in_a_signed_index(
    folder: Path, data: st.DataObject, without_manifest: bool
) -> None:
    path = folder / ".shardwright/index" / SHARD.replace(".tar", ".idx")
    complete = path.read_bytes()
    line, _, rest = complete[:-8].partition(b"\n")
    table = bytearray(rest)
    if data.draw(st.booleans()):
        line = json.dumps(changed(json.loads(line), data)).encode()
    else:
        start = data.draw(st.integers(0, len(table) // 8 - 1)) * 8
        table[start : start + 8] = data.draw(st.binary(min_size=8, max_size=8))
    body = line + b"\n" + bytes(table)
    path.write_bytes(signed_index(body))
    listed = folder / ".shardwright/manifest.json"
    kept = listed.read_bytes()
    if without_manifest:
        listed.unlink()
    report = looked_at(folder)
    if body != complete[:-8] and not without_manifest:
        assert report is not None
        assert report.damaged
    path.write_bytes(complete)
    listed.write_bytes(kept)


@given(st.data(), st.booleans())
@FUZZ
def test_verify_survives_any_damage_to_a_shard(
    folder: Path, data: st.DataObject, of_another_tool: bool
) -> None:
    path, state = folder / SHARD, folder / ".shardwright"
    complete = path.read_bytes()
    damaged = bytearray(complete)
    for _ in range(data.draw(st.integers(1, 4))):
        # Headers are where a reader can stumble, so they are hit as often as all else.
        start = data.draw(st.sampled_from([0, 1024, 5632, 166_400, len(complete) - 1024]))
        at = data.draw(st.integers(start, min(start + 700, len(complete) - 1)))
        damaged[at : at + 1] = data.draw(st.binary(max_size=2))
    path.write_bytes(damaged)
    if of_another_tool:
        state.rename(folder / "hidden")
    report = looked_at(folder)
    assert report is not None
    assert report.damaged or of_another_tool or bytes(damaged) == complete
    path.write_bytes(complete)
    if of_another_tool:
        (folder / "hidden").rename(state)
