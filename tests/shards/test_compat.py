"""The rules of the loaders, held against sound shards and against each fault."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.shards import compat
from shardwright.shards.compat import FAULTS, RULES, LoaderCheck
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
    return compat.check_loaders(folder, shardwright.Progress())


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
    report = shardwright.verify(shards, loaders=True)
    assert not report.damaged
    assert report.loaders == {
        "webdataset": "pass", "hf": "pass", "ray": "pass", "energon": "needs index",
        "dali": "needs index", "wids": "needs index", "webshart": "needs index",
    }  # fmt: skip
    shardwright.index(shards, for_=["energon", "dali", "wids", "webshart", "hf"])
    report = shardwright.verify(shards, loaders=True)
    assert not report.damaged
    assert report.loaders == dict.fromkeys(RULES, "pass")


def test_the_command_shows_a_matrix_and_the_cure(tmp_path: Path) -> None:
    shards = packed(tmp_path)
    shardwright.index(shards, for_=["webshart"])
    done = run("verify", shards, "--loaders")
    assert done.returncode == 12
    assert (
        "bucket_64x64/shard-000000.json: is visible, so load_dataset would open it as a tar (as 4 "
        "in all), which fails hf; write a card with shardwright index --for hf, or remove it\n"
    ) in done.stdout
    lines = done.stdout.split("loaders:\n")[1].splitlines()[:7]
    assert [line.split(maxsplit=1) for line in lines] == [
        ["webdataset", "pass"],
        ["hf", "FAIL"],
        ["energon", "pass, after shardwright index --for energon"],
        ["ray", "pass"],
        ["wids", "pass, after shardwright index --for wids"],
        ["dali", "pass, after shardwright index --for dali"],
        ["webshart", "pass"],
    ]
    done = run("verify", tmp_path / "derived", "--loaders")
    assert done.returncode == 2
    assert "is a store; --loaders is for a shard folder" in done.stderr
    assert run("verify", shards).returncode == 0


@pytest.mark.parametrize(
    ("fault", "members"),
    [
        ("empty", []),
        ("passed_over", [*sample("a"), ("README", b"")]),
        ("reserved", sample("__a")),
        ("repeated", [*sample("a"), ("a.x.npy", b"")]),
        ("apart", [*sample("a"), *sample("b"), ("a.y.npy", b"")]),
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
    assert failing(checks) == {"key_twice": {"energon"}}
    (fault,) = next(check for check in checks if check.loader == "energon").faults.values()
    assert fault.example == "bucket_64x64/shard-000001.tar: a.json"


def test_a_null_that_the_first_samples_never_settle_fails_hugging_face(tmp_path: Path) -> None:
    captions = [None, "x", *[None] * 8]
    settled = [m for n, caption in enumerate(captions) for m in sample(f"a{n}", caption=caption)]
    write(tmp_path, settled)
    assert passed(check_loaders(tmp_path))
    captions = [*[None] * 8, "x"]
    never = [m for n, caption in enumerate(captions) for m in sample(f"a{n}", caption=caption)]
    write(tmp_path, never)
    assert failing(check_loaders(tmp_path)) == {"json_differs": {"hf"}}


def test_records_of_unlike_fields_are_to_be_made_alike_before_packing_anew(tmp_path: Path) -> None:
    tagged = [m for n in range(9) for m in sample(f"a{n}", **({"tag": "x"} if n == 8 else {}))]
    write(tmp_path, tagged)
    (finding,) = compat.findings_of(check_loaders(tmp_path))
    assert finding.kind == "loader_json_differs"
    assert finding.cure == (
        "give all records of the store the same fields, each of one type, then pack with "
        "--overwrite"
    )


def test_pax_headers_fail_the_loaders_that_map_the_file(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    (tmp_path / "bucket_64x64").mkdir()
    with webdataset.TarWriter(str(tmp_path / "bucket_64x64" / "shard-000000.tar")) as tar:
        tar.write({"__key__": "a", "json": RECORD})
    assert failing(check_loaders(tmp_path)) == {"extended": {"wids", "webshart"}}


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
    assert failing(check_loaders(tmp_path))["unreadable"] == set(RULES)


def test_visible_files_fail_hugging_face_unless_a_card_names_the_shards(tmp_path: Path) -> None:
    shards = packed(tmp_path)
    shardwright.index(shards, for_=["webshart"])
    assert failing(check_loaders(shards)) == {"visible": {"hf"}}
    shardwright.index(shards, for_=["hf"])
    assert passed(check_loaders(shards))


@pytest.mark.parametrize("loader", ["energon", "dali", "wids", "webshart"])
def test_an_index_of_an_earlier_packing_is_stale(tmp_path: Path, loader: str) -> None:
    shards = packed(tmp_path)
    shardwright.index(shards, for_=[loader, "hf"])
    shardwright.pack(
        derived_dir=tmp_path / "derived", output_dir=shards, shard_size=3, overwrite=True, workers=1
    )
    assert failing(check_loaders(shards)) == {"stale": {loader}}
    shardwright.index(shards, for_=[loader])
    assert passed(check_loaders(shards))


@pytest.mark.parametrize("damaged", ["manifest.json", "index/bucket_64x64/shard-000000.idx"])
def test_a_damaged_index_of_ours_is_reported_not_raised(tmp_path: Path, damaged: str) -> None:
    shards = packed(tmp_path)
    shardwright.index(shards, for_=["energon"])
    path = shards / ".shardwright" / damaged
    path.write_bytes(path.read_bytes()[:-9])
    report = shardwright.verify(shards, loaders=True)
    assert report.damaged
    assert report.loaders is not None
    assert report.loaders["webdataset"] == "pass"
