"""The rules of the loaders, on valid shards and on each fault."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.verifying import loader_rules
from shardwright.verifying.loader_rules import FAULTS, RULES, LoaderCheck
from tests.commands import run
from tests.shards.packed import packed

Members = list[tuple[str, bytes]]

RECORD = {"image_id": "a", "caption": "a cat", "width": 64}


def sample(key: str, **fields: Any) -> Members:  # noqa: ANN401
    record = RECORD | {"image_id": key} | fields
    return [(f"{key}.json", json.dumps(record).encode()), (f"{key}.x.npy", b"x")]


def write(folder: Path, members: Members, number: int = 0, **options: Any) -> Path:  # noqa: ANN401
    path = folder / "bucket_64x64" / f"shard-{number:06}.tar"
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def check_loaders(folder: Path) -> list[LoaderCheck]:
    return loader_rules.check_loaders(folder, shardwright.Progress())


def passed(checks: list[LoaderCheck]) -> bool:
    return all(check.verdict != "fail" for check in checks)


def failing(checks: list[LoaderCheck]) -> dict[str, set[str]]:
    """Give the loaders that fail, by fault."""
    found: dict[str, set[str]] = {}
    for check in checks:
        assert (check.verdict == "fail") == bool(check.faults)
        for fault in check.faults:
            found.setdefault(fault, set()).add(check.loader)
    return found


def concerned(fault: str) -> set[str]:
    return {loader for loader, rules in RULES.items() if fault in rules}


def test_every_rule_has_an_explanation_and_every_fault_a_loader() -> None:
    assert {fault for rules in RULES.values() for fault in rules} == FAULTS.keys()


def test_packed_shards_pass_for_every_loader(tmp_path: Path) -> None:
    shards = packed(tmp_path)
    report = shardwright.verify(shards, loaders=True, workers=1)
    assert not report.damaged
    assert report.loaders == {
        "webdataset": "pass", "hf": "pass", "ray": "pass", "energon": "needs index",
        "dali": "needs index", "wids": "needs index", "webshart": "needs index",
    }  # fmt: skip
    shardwright.index(shards, for_=["energon", "dali", "wids", "webshart", "hf"])
    report = shardwright.verify(shards, loaders=True, workers=1)
    assert not report.damaged
    assert report.loaders == dict.fromkeys(RULES, "pass")


def test_the_command_shows_a_matrix_and_the_fix(tmp_path: Path) -> None:
    shards = packed(tmp_path)
    shardwright.index(shards, for_=["webshart"])
    done = run("verify", shards, "--loaders")
    assert done.returncode == 12
    assert (
        "bucket_64x64/shard-000000.json: is visible, so load_dataset would open it as a tar (4 in "
        "total): fails hf; remove it, or write a card with shardwright "
        f"index {shards} --for hf\n"
    ) in done.stdout
    lines = done.stdout.split("loaders:\n")[1].splitlines()[:7]
    assert [line.split(maxsplit=1) for line in lines] == [
        ["webdataset", "pass"],
        ["hf", "FAIL"],
        ["energon", f"pass, after shardwright index {shards} --for energon"],
        ["ray", "pass"],
        ["wids", f"pass, after shardwright index {shards} --for wids"],
        ["dali", f"pass, after shardwright index {shards} --for dali"],
        ["webshart", "pass"],
    ]
    done = run("verify", tmp_path / "derived", "--loaders")
    assert done.returncode == 2
    assert "is a store; --loaders is for a shard folder" in done.stderr
    assert run("verify", shards).returncode == 0


@pytest.mark.parametrize(
    ("fault", "members"),
    [
        ("no_samples", []),
        ("no_key", [*sample("a"), ("README", b"")]),
        ("reserved", sample("__a")),
        ("repeated_member", [*sample("a"), ("a.x.npy", b"")]),
        ("key_apart", [*sample("a"), *sample("b"), ("a.y.npy", b"")]),
        ("upper_case", [("a.X.npy", b"x")]),
        ("not_alike", [*sample("a"), *sample("b")[:1]]),
        ("json_differs", [m for n in range(9) for m in sample(f"a{n}", width=n if n < 7 else 0.5)]),
        ("long", sample("a" * 60 + "/" + "b" * 60)),
        ("space", sample("a b")),
    ],
)
def test_each_fault_fails_the_loaders_it_concerns(
    tmp_path: Path, fault: str, members: Members
) -> None:
    write(tmp_path, members)
    found = failing(check_loaders(tmp_path))
    assert found[fault] == concerned(fault)
    assert found.keys() - {"not_alike"} == {fault} - {"not_alike"}


def test_a_key_in_two_shards_fails_energon(tmp_path: Path) -> None:
    write(tmp_path, sample("a"), 0)
    write(tmp_path, sample("a"), 1)
    checks = check_loaders(tmp_path)
    assert failing(checks) == {"repeated_key": {"energon"}}
    (fault,) = next(check for check in checks if check.loader == "energon").faults.values()
    assert fault.example == "bucket_64x64/shard-000001.tar: a.json"


def records(first: Any, **others: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any JSON
    """Give eight records with one value in ``x``, but for some: ``at6=...``."""
    values = {f"at{n}": first for n in range(8)} | others
    return [{} if value is ... else {"x": value} for value in values.values()]


# What Hugging Face makes of each: checked with itself below.
JSON_CASES = {
    "alike": (records({"a": [1, 2]}), set()),
    "a null among the first": (records("s", at0=None), set()),
    "missing later": (records(1, at6=...), set()),
    "missing among the first": (records(1, at2=...), set()),
    "nested, missing later": (records({"a": 1}, at6={}), set()),
    "nested, only in one of the first": (records({"a": 1}, at2={"a": 1, "b": 2}), set()),
    "an int for a float later": (records(1.5, at6=1), set()),
    "a float and ints in one list": (records([0, 0.5]), set()),
    "an empty list later": (records([1], at6=[]), set()),
    "the least of 64 bits": (records(-(2**63)), set()),
    "only null among the first": (records(None, at6="s"), {"json_new"}),
    "only empty among the first": (records([], at6=["s"]), {"json_new"}),
    "new later": (records(..., at6=1), {"json_new"}),
    "new and null later": (records(..., at6=None), set()),
    "nested, new later": (records({"a": 1}, at6={"a": 1, "b": 2}), {"json_new"}),
    "in a list, new later": (records([{"a": 1}], at6=[{"a": 1, "b": 2}]), {"json_new"}),
    "a float for an int later": (records(1, at6=1.5), {"json_differs"}),
    "a float for an int among the first": (records(1, at1=1.5), {"json_differs"}),
    "an int for a float among the first": (records(1.5, at1=1), {"json_differs"}),
    "a text for an int later": (records(1, at6="s"), {"json_differs"}),
    "an int for a text later": (records("s", at6=1), {"json_differs"}),
    "nested, a text for an int later": (records({"a": 1}, at6={"a": "s"}), {"json_differs"}),
    "in a list, a text for an int later": (records([1], at6=["s"]), {"json_differs"}),
    "in one list, a text and an int": (records([1, "s"]), {"json_differs"}),
    "an object for an int later": (records(1, at6={"a": 1}), {"json_differs", "json_new"}),
    "more than 63 bits": (records(2**63), {"json_large"}),
    "more than 64 bits": (records(-(2**64)), {"json_large"}),
    "more than 63 bits later": (records(1, at6=2**63), {"json_large", "json_differs"}),
}


def write_records(folder: Path, found: list[dict[str, Any]]) -> Path:
    named = [{"image_id": f"a{n}", **fields} for n, fields in enumerate(found)]
    return write(folder, [(f"{r['image_id']}.json", json.dumps(r).encode()) for r in named])


@pytest.mark.parametrize("case", JSON_CASES)
def test_json_fails_hugging_face_where_it_raises_or_loses_something(
    tmp_path: Path, case: str
) -> None:
    found, faults = JSON_CASES[case]
    write_records(tmp_path, found)
    assert failing(check_loaders(tmp_path)) == {fault: {"hf"} for fault in faults}


def filled(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Leave out what is null, which Hugging Face cannot tell from what is not there."""
    if isinstance(value, dict):
        kept = {name: filled(item) for name, item in value.items()}
        return {name: item for name, item in kept.items() if item not in (None, {})}
    return [filled(item) for item in value] if isinstance(value, list) else value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", JSON_CASES)
def test_hugging_face_itself_agrees_on_json(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    found, faults = JSON_CASES[case]
    shard = write_records(tmp_path, found)
    options = {"data_files": {"train": str(shard)}, "split": "train", "cache_dir": str(tmp_path)}
    try:
        read = [sample["json"] for sample in datasets.load_dataset("webdataset", **options)]
    except Exception:  # of many kinds
        assert faults
        return
    kept = [{"image_id": f"a{n}", **filled(fields)} for n, fields in enumerate(found)]
    same = [repr(filled(fields)) for fields in read] == [repr(fields) for fields in kept]
    floats = ("an int for a float later", "a float and ints in one list")
    assert same == (not faults) or (case in floats and [filled(f) for f in read] == kept)


def test_records_of_unlike_fields_get_a_fix(tmp_path: Path) -> None:
    tagged = [m for n in range(9) for m in sample(f"a{n}", **({"tag": "x"} if n == 8 else {}))]
    write(tmp_path, tagged)
    (finding,) = loader_rules.findings_of(check_loaders(tmp_path), tmp_path)
    assert finding.kind == "loader_json_new"
    assert finding.fix == (
        "give all records of the store the same fields, each of one type, then pack with "
        "--overwrite"
    )


def test_pax_headers_fail_the_loaders_that_map_the_file(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    (tmp_path / "bucket_64x64").mkdir()
    with webdataset.TarWriter(str(tmp_path / "bucket_64x64" / "shard-000000.tar")) as tar:
        tar.write({"__key__": "a", "json": RECORD})
    assert failing(check_loaders(tmp_path)) == {"extended_headers": {"wids", "webshart"}}


def test_links_fail_everybody(tmp_path: Path) -> None:
    path = write(tmp_path, sample("a"))
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("a.y.npy")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert failing(check_loaders(tmp_path)) == {"not_a_file": set(RULES)}


def test_a_shard_that_is_cut_off_fails_everybody(tmp_path: Path) -> None:
    path = write(tmp_path, sample("a"))
    path.write_bytes(path.read_bytes()[:1000])
    assert failing(check_loaders(tmp_path))["not_a_tar"] == set(RULES)


def test_visible_files_fail_hugging_face_unless_a_card_names_the_shards(tmp_path: Path) -> None:
    shards = packed(tmp_path)
    shardwright.index(shards, for_=["webshart"])
    assert failing(check_loaders(shards)) == {"visible": {"hf"}}
    shardwright.index(shards, for_=["hf"])
    assert passed(check_loaders(shards))


@pytest.mark.parametrize("loader", ["energon", "dali", "wids", "webshart", "hf"])
def test_an_index_of_an_earlier_packing_is_stale(tmp_path: Path, loader: str) -> None:
    shards = packed(tmp_path)
    shardwright.index(shards, for_=[loader, "hf"])
    card = shards / "README.md"
    card.write_text(card.read_text() + "My own words.\n")
    assert passed(check_loaders(shards))
    shardwright.pack(
        derived_dir=tmp_path / "derived", output_dir=shards, shard_size=3, overwrite=True, workers=1
    )
    assert failing(check_loaders(shards)) == {"stale": {loader, "hf"}}
    shardwright.index(shards, for_=[loader, "hf"])
    assert passed(check_loaders(shards))


@pytest.mark.parametrize("damaged", ["manifest.json", "index/bucket_64x64/shard-000000.idx"])
def test_a_damaged_index_of_ours_is_reported_not_raised(tmp_path: Path, damaged: str) -> None:
    shards = packed(tmp_path)
    shardwright.index(shards, for_=["energon"])
    path = shards / ".shardwright" / damaged
    path.write_bytes(path.read_bytes()[:-9])
    report = shardwright.verify(shards, loaders=True, workers=1)
    assert report.damaged
    assert report.loaders is not None
    assert report.loaders["webdataset"] == "pass"
