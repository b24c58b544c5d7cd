"""What the viewer answers about a store, shards, a split and a URL, asked through its server."""

from __future__ import annotations

import io
import shutil
import tarfile
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
import webdataset
import xxhash
from PIL import Image

from shardwright import InputMissingError, UsageError, look, pack
from shardwright.looking.viewer import Viewer
from tests.commands import wait_until
from tests.look.pictures import HOSTILE, LONG, Folders, Served, painted, previews
from tests.shards.webserver import serving

CUT = LONG.index("word76")  # 76 words, and the end


def number_of(served: Served, image_id: str) -> int:
    (sample,) = served.get(f"api/samples?id={image_id}")["samples"]
    return int(sample["n"])


@pytest.mark.parametrize("kind", ["store", "shards"])
def test_the_overview_counts_buckets_reasons_and_what_deserves_attention(
    kind: str, request: pytest.FixtureRequest
) -> None:
    served: Served = request.getfixturevalue(kind)
    found = served.get("api/overview")
    assert (found["kind"], found["samples"]) == (kind, 23)
    counted = {each["bucket"]: each["samples"] for each in found["buckets"]}
    assert counted == {"64x64": 9, "96x64": 8, "64x96": 6}
    assert sum(each["bytes"] for each in found["buckets"]) == found["bytes"]
    said = {each["flag"] or each["state"]: each for each in found["attention"]}
    assert said["truncated"]["text"] == "1 caption is cut off: longer than t5 reads"
    assert said["enlarged"]["text"] == "1 image enlarged more than 1.25 times, up to 2.00"
    assert said["cropped"]["text"] == "1 image cropped by more than 25%, up to 62%"
    for flag, image_id in (("truncated", "long"), ("enlarged", "small"), ("cropped", "wide")):
        listed = served.get(f"api/samples?{said[flag]['query']}")
        assert [sample["id"] for sample in listed["samples"]] == [image_id]
    if kind == "store":
        assert found["not_ready"] == [{"reason": "broken_image", "count": 1}]
        (broken,) = served.get("api/samples?state=broken_image")["samples"]
        assert broken["id"] == "broken"
        assert served.get(f"api/sample/{broken['n']}")["record"]["reason"] == "broken_image"
    titles = [each["title"] for each in found["histograms"]]
    assert titles == [
        "Enlarged (times)",
        "Cropped (share of the picture)",
        "Tokens, t5",
        "Tokens cut off, t5",
    ]
    for each in found["histograms"]:
        assert sum(count for *_, count in each["bins"]) + each["unknown"] in (23, 24)


def test_the_bytes_of_shards_and_of_a_store_are_those_on_the_disk(
    at: Folders, shards: Served, store: Served
) -> None:
    tars = sum(path.stat().st_size for path in at.shards.glob("bucket_*/*.tar"))
    assert shards.get("api/overview")["bytes"] == tars
    arrays = sum(path.stat().st_size for path in at.store.glob("*/*.npy"))
    assert store.get("api/overview")["bytes"] == arrays
    assert store.get("api/overview")["about"] is False


def test_samples_are_filtered_sorted_and_paged(shards: Served) -> None:
    found = shards.get("api/samples?text=thing%20number&sort=width&order=desc&size=4&page=1")
    assert (found["total"], len(found["samples"]), found["page"]) == (18, 4, 1)
    assert [each["numbers"]["width"] for each in found["samples"]] == [96, 96, 64, 64]
    assert shards.get("api/samples?bucket=64x96&text=THING")["total"] == 6
    assert shards.get("api/samples?page=99")["samples"] == []


def test_a_sample_shows_its_members_with_true_statistics_checksums_and_places(
    at: Folders, shards: Served, store: Served
) -> None:
    for served in (shards, store):
        found = served.get(f"api/sample/{number_of(served, 'img004')}")
        latent = np.load(at.store / "vae_latents/img004.npy")
        members = {each["name"]: each for each in found["members"]}
        assert list(members) == ["dinov3.npy", "vae.npy", "t5h.npy", "t5m.npy"]
        shown = members["vae.npy"]
        assert (shown["dtype"], shown["shape"]) == ("float16", [16, 8, 12])
        assert shown["mean"] == pytest.approx(float(latent.astype(float).mean()))
        assert (shown["min"], shown["max"]) == (float(latent.min()), float(latent.max()))
        assert (shown["nan"], shown["inf"], shown["fault"]) == (0, 0, None)
        assert found["record"]["caption"] == found["text"]
        assert found["tokens"] == {"t5": found["masks"]["t5"].count("1")}
        assert "t5_attention_mask" not in found["record"]
    found = shards.get(f"api/sample/{number_of(shards, 'img004')}")
    (shown,) = (each for each in found["members"] if each["name"] == "vae.npy")
    data = (at.store / "vae_latents/img004.npy").read_bytes()
    assert shown["xxh3"] == xxhash.xxh3_64_hexdigest(data)
    place, _, sample = found["place"].partition(", sample ")
    with tarfile.open(place) as tar:
        names = [name for name in tar.getnames() if name.endswith(".json")]
        assert names[int(sample)] == "img004.json"
        (member,) = (each for each in tar if each.name == "img004.vae.npy")
        assert shown["at"] == f"byte {member.offset_data:,}"


@pytest.mark.parametrize("kind", ["store", "shards"])
def test_the_part_of_a_caption_that_was_cut_off_is_known(
    kind: str, request: pytest.FixtureRequest
) -> None:
    served: Served = request.getfixturevalue(kind)
    found = served.get(f"api/sample/{number_of(served, 'long')}")
    ((component, at, lost),) = [
        (each["component"], each["at"], each["lost"]) for each in found["cuts"]
    ]
    assert (component, lost) == ("t5", 24)
    assert found["text"][at:].strip() == LONG[CUT:]
    assert found["tokens"] == {"t5": 77}
    assert served.get(f"api/sample/{number_of(served, 'img000')}")["cuts"] == []


def test_a_picture_is_what_the_arrays_show_and_the_image_is_complete(
    at: Folders, shards: Served
) -> None:
    number = number_of(shards, "wide")
    found = shards.get(f"api/sample/{number}")["image"]
    assert (found["width"], found["height"], found["note"]) == (256, 64, None)
    assert found["crop"] == [80, 0, 176, 64]
    complete = np.asarray(shards.picture(f"image/{number}")).astype(int)
    assert np.abs(complete - painted(256, 64, seed=100)).mean() < 4
    shown = np.asarray(shards.picture(f"thumb/{number}")).astype(int)
    assert np.abs(shown - painted(256, 64, seed=100)[:, 80:176]).mean() < 4


def test_a_latent_is_shown_as_the_picture_it_was_made_from(shards: Served) -> None:
    number = number_of(shards, "img001")
    shown = np.asarray(shards.picture(f"latent/{number}/vae").convert("L")).astype(float)
    image = np.asarray(Image.fromarray(painted(96, 64, seed=1)).convert("L")).astype(float)
    assert np.corrcoef(shown.ravel(), image.ravel())[0, 1] > 0.9
    small = np.asarray(shards.picture(f"thumb/{number}?of=latent").convert("L")).astype(float)
    assert np.corrcoef(small.ravel(), image.ravel())[0, 1] > 0.9
    (said,) = shards.get("api/latents")["latents"]
    assert said["agreement"] > 0.9
    assert said["warning"] is None


def test_latents_of_other_images_are_reported(at: Folders, tmp_path: Path) -> None:
    moved = tmp_path / "images"
    moved.mkdir()
    names = sorted(path.name for path in at.images.glob("img*.png"))
    for one, two in zip(names, [*names[3:], *names[:3]], strict=True):
        shutil.copy(at.images / one, moved / two)
    with Served(Viewer(previews(at.shards, moved))) as served:
        (said,) = served.get("api/latents")["latents"]
    assert said["agreement"] < 0.5
    assert said["warning"].startswith("the vae latents do not look like their images (correlation ")


def test_other_images_of_the_same_kind_are_noticed_too(demonstrated: Path, tmp_path: Path) -> None:
    images, moved = demonstrated / "images", tmp_path / "moved"
    moved.mkdir()
    names = sorted(path.name for path in images.glob("*.jpg"))
    for one, two in zip(names, [*names[8:], *names[:8]], strict=True):
        with Image.open(images / one) as image, Image.open(images / two) as own:
            image.resize(own.size).save(moved / two)
    for folder, warned in ((images, False), (moved, True)):
        (said,) = Viewer(previews(demonstrated / "shards", folder)).latents({})["latents"]
        assert bool(said["warning"]) is warned, said


def test_shards_without_images_show_latents_instead(at: Folders) -> None:
    with Served(Viewer(previews(at.shards, at.split))) as served:
        number = number_of(served, "img001")
        assert served.get(f"api/sample/{number}")["image"] is None
        assert served.picture(f"thumb/{number}").size == (96, 64)


def test_images_that_have_moved_are_found_by_the_end_of_their_path(
    at: Folders, tmp_path: Path
) -> None:
    shutil.copytree(at.images, tmp_path / "elsewhere" / "images")
    (tmp_path / "elsewhere" / "img001.png").write_bytes(b"not this one")
    looked = previews(at.shards, tmp_path / "elsewhere")
    number = looked.source.table.ids.index("img001")
    assert looked.file(number) == str(tmp_path / "elsewhere/images/img001.png")


def test_an_image_of_another_size_is_shown_with_a_note_and_without_a_crop(
    at: Folders, tmp_path: Path
) -> None:
    Image.fromarray(painted(50, 40, seed=9)).save(tmp_path / "wide.png")
    with Served(Viewer(previews(at.shards, tmp_path))) as served:
        found = served.get(f"api/sample/{number_of(served, 'wide')}")["image"]
    assert found["crop"] is None
    assert found["note"] == "the file has 50x40 pixels, the record says otherwise"


def test_similar_samples_are_found_in_the_background_and_become_flags(shards: Served) -> None:
    shards.get("api/similar?start=1")
    wait_until(lambda: shards.get("api/similar")["state"] == "ready")
    said = shards.get("api/similar")
    assert (said["approximate"], said["samples"], said["default"]) == (False, 23, 0.95)
    assert sum(count for *_, count in said["histogram"]) >= 1
    found = shards.get("api/groups?threshold=0.98")
    assert [sorted(each["id"] for each in group["samples"]) for group in found["items"]] == [
        ["copy", "img000"]
    ]
    assert (found["groups"], found["samples"]) == (1, 2)
    near = shards.get("api/samples?flag=near-duplicate")["samples"]
    assert {"copy", "img000"} <= {each["id"] for each in near}
    sample = shards.get(f"api/sample/{number_of(shards, 'copy')}")
    assert sample["similar"][0]["id"] == "img000"
    assert sample["similar"][0]["similarity"] > 0.98
    by = shards.get("api/samples?sort=nearest_similarity&order=desc&size=2")["samples"]
    assert {each["id"] for each in by} == {"copy", "img000"}
    text = [each["text"] for each in shards.get("api/overview")["attention"]]
    assert "near-duplicates have not been searched" not in text
    assert any("nearly alike (dinov3: cosine 0.95 or more)" in line for line in text)


def test_the_map_has_a_point_for_each_sample_and_colours_in_the_same_order(shards: Served) -> None:
    shards.get("api/similar?start=1")
    wait_until(lambda: shards.get("api/similar")["state"] == "ready")
    found = shards.get("api/map")
    assert found["of"] == len(found["n"]) == len(found["x"]) == len(found["y"]) == 23
    assert (min(found["x"]), max(found["x"])) == (0, 65535)
    by = shards.get("api/colours?by=bucket")
    table = shards.viewer.table
    assert [by["legend"][code] for code in by["codes"]] == [table.buckets[n] for n in found["n"]]
    words = shards.get("api/colours?by=text&text=thing%20wide")["codes"]
    assert words[found["n"].index(number_of(shards, "wide"))] == 100
    assert words[found["n"].index(number_of(shards, "img003"))] == 50


def test_two_paths_are_compared_by_id(at: Folders, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(at.store, other)
    latent = np.load(other / "vae_latents/img004.npy")
    np.save(other / "vae_latents/img004.npy", latent + np.float16(0.5))
    jsonl = other / "approved_image_dataset.jsonl"
    records = [msgspec.json.decode(line) for line in jsonl.read_bytes().splitlines()]
    for record in records:
        if record["image_id"] == "img005":
            record["caption"] = "another text"
    jsonl.write_bytes(
        b"".join(msgspec.json.encode(r) + b"\n" for r in records if r["image_id"] != "img006")
    )
    with Served(Viewer(previews(at.shards, at.images), previews(other))) as served:
        said = served.get("api/overview")["other"]
        assert (said["both"], said["only_here"], said["captions"]) == (22, 1, 1)
        for how, ids in (("missing", ["img006"]), ("caption", ["img005"])):
            listed = served.get(f"api/samples?other={how}")["samples"]
            assert [each["id"] for each in listed] == ids
        number = number_of(served, "img004")
        found = served.get(f"api/sample/{number}")
        assert found["other"]["id"] == "img004"
        compared = {each["name"]: each for each in found["differences"]}
        assert compared["dinov3.npy"]["same"] is True
        assert compared["vae.npy"]["same"] is False
        assert compared["vae.npy"]["largest"] == pytest.approx(0.5, abs=0.01)
        assert 0.5 < compared["vae.npy"]["cosine"] < 1
        one, two = (
            np.asarray(served.picture(f"latent/{number}/vae{side}")).astype(int)
            for side in ("", "?side=other")
        )
        assert np.abs(one - two).mean() > 1
        assert served.get(f"api/sample/{number_of(served, 'img006')}")["other"] is None


def test_a_split_folder_is_looked_at_as_one_with_its_parts(at: Folders) -> None:
    with Served(Viewer(previews(at.split, at.images))) as served:
        found = served.get("api/overview")
        assert found["parts"] == ["train", "val"]
        assert found["samples"] == 23
        counts = {
            part: served.get(f"api/samples?part={part}")["total"] for part in ("train", "val")
        }
        assert sum(counts.values()) == 23
        for part, count in counts.items():
            shown = [each for each in found["buckets"] if each["part"] == part]
            assert sum(each["samples"] for each in shown) == count > 0
        number = served.get("api/samples?part=val")["samples"][0]["n"]
        assert "/val/bucket_" in served.get(f"api/sample/{number}")["place"]


def test_shards_without_files_of_records_show_the_same_but_for_facts(
    at: Folders, tmp_path: Path, shards: Served
) -> None:
    old = tmp_path / "old"
    shutil.copytree(at.shards, old)
    for path in old.glob(".shardwright/index/*/*.jsonl"):
        path.unlink()
    with Served(Viewer(previews(old, at.images))) as served:
        said = [each["text"] for each in served.get("api/overview")["attention"]]
        missing = ".shardwright/index/bucket_64x64/shard-000000.jsonl is damaged or missing; run "
        assert any(missing in line for line in said)
        assert "not known whether t5 cut off captions: 23 samples" in said
        assert served.viewer.table.ids == shards.viewer.table.ids
        now, then = (each.get(f"api/sample/{number_of(each, 'wide')}") for each in (shards, served))
        assert now["record"] == then["record"]


def test_tars_without_a_manifest_are_read_by_their_headers(at: Folders, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(at.shards, bare, ignore=shutil.ignore_patterns(".shardwright"))
    with Served(Viewer(previews(bare, at.images))) as served:
        assert served.get("api/overview")["samples"] == 23
        found = served.get(f"api/sample/{number_of(served, 'img004')}")
        assert [each["name"] for each in found["members"]] == [
            "dinov3.npy",
            "vae.npy",
            "t5h.npy",
            "t5m.npy",
        ]


def test_shards_behind_a_url_are_read_in_ranges_and_never_touch_local_files(at: Folders) -> None:
    with serving(at.shards) as web, Served(Viewer(previews(web.url))) as served:
        assert served.get("api/overview")["samples"] == 23
        assert not [name for name, _ in web.served if name.endswith(".tar")]
        number = number_of(served, "img004")
        found = served.get(f"api/sample/{number}")
        assert found["members"][1]["shape"] == [16, 8, 12]
        # The record names a file that is there; but a stranger may have written it.
        assert found["image"] is None
        assert served.picture(f"thumb/{number}").size == (96, 64)
        largest = max(size for name, size in web.served if name.endswith(".tar"))
        assert largest < min(path.stat().st_size for path in at.shards.glob("bucket_*/*.tar"))


def test_a_damaged_array_is_shown_as_such_and_the_others_are_there(
    at: Folders, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(at.store, bad)
    path = bad / "vae_latents/img004.npy"
    path.write_bytes(path.read_bytes()[:-2])
    with Served(Viewer(previews(bad))) as served:
        found = served.get(f"api/sample/{number_of(served, 'img004')}")
        faults = {each["name"]: each["fault"] for each in found["members"]}
        assert faults == {
            "dinov3.npy": None,
            "vae.npy": "truncated",
            "t5h.npy": None,
            "t5m.npy": None,
        }


def test_a_changed_byte_of_a_shard_is_shown_at_its_member(at: Folders, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(at.shards, bad)
    with Served(Viewer(previews(bad, at.images))) as served:
        number = number_of(served, "img004")
        place = served.get(f"api/sample/{number}")["place"].partition(", sample ")[0]
        with tarfile.open(place) as tar:
            (member,) = (each for each in tar if each.name == "img004.vae.npy")
        with open(place, "r+b") as file:
            file.seek(member.offset_data + 200)
            file.write(b"\x01\x02")
    with Served(Viewer(previews(bad, at.images))) as served:
        found = served.get(f"api/sample/{number_of(served, 'img004')}")
        faults = {each["name"]: each["fault"] for each in found["members"]}
        assert faults.pop("vae.npy") == "its bytes do not match the checksum"
        assert set(faults.values()) == {None}


def test_tars_of_other_tools_show_their_pictures_and_captions(tmp_path: Path) -> None:
    with webdataset.ShardWriter(str(tmp_path / "plain-%06d.tar"), verbose=0) as writer:
        for number in range(3):
            file = io.BytesIO()
            Image.fromarray(painted(48, 32, seed=number)).save(file, "jpeg", quality=95)
            words = f"a thing of number {number}"
            writer.write({"__key__": f"key{number}", "jpg": file.getvalue(), "txt": words})
    with Served(Viewer(previews(tmp_path))) as served:
        found = served.get("api/samples?text=number")
        assert [each["id"] for each in found["samples"]] == ["key0", "key1", "key2"]
        assert found["samples"][1]["caption"] == "a thing of number 1"
        shown = np.asarray(served.picture("thumb/1")).astype(int)
        assert np.abs(shown - painted(48, 32, seed=1)).mean() < 10


def test_a_store_whose_first_derive_was_interrupted_says_what_to_run(
    at: Folders, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(at.store, store)
    jsonl = store / "approved_image_dataset.jsonl"
    shutil.copy(jsonl, store / "approved_image_dataset.jsonl.tmp")
    said = [each["text"] for each in Viewer(previews(store)).overview({})["attention"]]
    assert said[0] == "records of a running or interrupted derive are not shown yet"
    jsonl.unlink()
    with pytest.raises(
        InputMissingError, match=r"left its records in .*; to merge them, run shard"
    ):
        previews(store)


def test_a_store_that_is_written_to_meanwhile_says_so(at: Folders, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(at.store, changed)
    looked = previews(changed)
    jsonl = changed / "approved_image_dataset.jsonl"
    jsonl.write_bytes(b"{}\n" + jsonl.read_bytes())
    with pytest.raises(Exception, match="changed since it was opened; stop shardwright look and"):
        looked.source.record(3)


def test_hostile_captions_arrive_as_they_are(shards: Served) -> None:
    found = shards.get(f"api/sample/{number_of(shards, 'evil')}")
    assert found["text"] == HOSTILE


def test_a_picture_member_is_shown_where_images_are_not(at: Folders, tmp_path: Path) -> None:
    from shardwright import derive

    recipe = tmp_path / "with.toml"
    text = (at.root / "small.toml").read_text()
    recipe.write_text(text + '[component.picture]\nencoder = "picture"\nformat = "png"\n')
    derive(at.images, recipe=recipe, derived_dir=tmp_path / "store", encoders="sketch")
    pack(derived_dir=tmp_path / "store", output_dir=tmp_path / "shards", workers=1)
    with Served(Viewer(previews(tmp_path / "shards", tmp_path / "store"))) as served:
        number = number_of(served, "img001")
        shown = np.asarray(served.picture(f"thumb/{number}")).astype(int)
        assert np.abs(shown - painted(96, 64, seed=1)).mean() < 4
        member = served.get(f"api/sample/{number}")["members"][-1]
        assert (member["name"], member["dtype"], member["fault"]) == ("picture.png", None, None)


def test_a_damaged_record_is_shown_as_such_beside_the_others(at: Folders, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(at.shards, bad)
    (shard,) = bad.glob("bucket_64x96/shard-000000.tar")
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b'"caption":"a', b'"caption":\xff"', 1))
    with Served(Viewer(previews(bad, at.images))) as served:
        found = served.get("api/samples?bucket=64x96")
        assert (found["total"], len(found["samples"])) == (6, 6)
        (broken,) = (each for each in found["samples"] if not each["caption"])
        sample = served.get(f"api/sample/{broken['n']}")
        assert "is damaged (not JSON" in sample["fault"]
        assert [each["fault"] for each in sample["members"]] == [None] * 4
        assert served.get("api/latents")["latents"][0]["agreement"] > 0.9
    look(bad, images=at.images, report=tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("<figure>") == 23


@pytest.fixture
def odd(at: Folders, tmp_path: Path) -> tuple[Path, Served]:
    """A store whose records have odd ids and numbers."""
    store = tmp_path / "store"
    shutil.copytree(at.store, store)
    np.save(tmp_path / "secret.npy", np.arange(1024, dtype=np.float32))
    jsonl = store / "approved_image_dataset.jsonl"
    records = [msgspec.json.decode(line) for line in jsonl.read_bytes().splitlines()]
    for record, image_id in zip(records, [None, 7, "../../secret", "a\0b", ""], strict=False):
        record["image_id"] = image_id
        if image_id is None:
            del record["image_id"]
    records[6] |= {"crop": [0, 0, 1e-320, 1], "score": 1.7e308}
    records[7] |= {"crop": [0, 0, 10**400, 1], "score": -1.7e308}
    records[8] |= {"width": 10**400, "score": 3}
    (store / ".shardwright/facts.jsonl").unlink()
    jsonl.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return tmp_path, Served(Viewer(previews(store)))


def test_records_with_odd_ids_and_numbers_are_shown_and_lead_nowhere_else(
    odd: tuple[Path, Served],
) -> None:
    _, served = odd
    with served:
        found = served.get("api/overview")
        reasons = {each["reason"] for each in found["not_ready"]}
        assert {"image_id_missing", "image_id_invalid"} <= reasons
        for reason in reasons:
            for each in served.get(f"api/samples?state={reason}")["samples"]:
                sample = served.get(f"api/sample/{each['n']}")
                faults = [one["fault"] for one in sample["members"]][:3]
                if reason.startswith("image_id"):
                    assert faults == ["no valid image_id"] * 3, "no array of another place is read"
        (score,) = (each for each in found["columns"] if each["name"] == "score")
        assert score["title"] == "score"
        for number in range(len(served.viewer.table)):
            served.get(f"api/sample/{number}")
        served.get("api/similar?start=1")
        wait_until(lambda: served.get("api/similar")["state"] != "working")
        assert served.get("api/similar")["state"] == "ready"


def test_flags_may_appear_while_others_read(shards: Served) -> None:
    table = shards.viewer.table
    column = np.zeros(len(table))
    done = threading.Event()

    def put() -> None:
        for number in range(3000):
            table.put(f"extra{number % 50}", column, {f"flag{number % 50}": column > 0})
        done.set()

    threading.Thread(target=put).start()
    while not done.is_set():
        shards.viewer.overview({})
        shards.viewer.samples({"size": "5"})
    table.numbers = {name: c for name, c in table.numbers.items() if not name.startswith("extra")}
    table.flags = {name: c for name, c in table.flags.items() if not name.startswith("flag")}


def test_a_map_without_vectors_is_empty(at: Folders, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(at.store, store)
    for path in (store / "dinov3").glob("*.npy"):
        np.save(path, np.zeros(1024, np.float32))
    with Served(Viewer(previews(store))) as served:
        served.get("api/similar?start=1")
        wait_until(lambda: served.get("api/similar")["state"] == "ready")
        assert served.get("api/map") == {"n": [], "x": [], "y": [], "of": 0}
        assert served.get("api/groups")["groups"] == 0


def test_parts_of_different_recipes_are_refused(at: Folders, tmp_path: Path) -> None:
    split = tmp_path / "split"
    shutil.copytree(at.split, split)
    shutil.rmtree(split / "val")
    shutil.copytree(at.split / "val", split / "val")
    manifest = split / "val/.shardwright/manifest.json"
    text = manifest.read_text().replace('"fit": "bucket"', '"fit": "original"')
    body = text.rpartition(',\n  "xxh3": "')[0]
    digest = xxhash.xxh3_64_hexdigest(body.encode())
    manifest.write_text(f'{body},\n  "xxh3": "{digest}"\n}}\n')
    with pytest.raises(UsageError, match="its parts have different recipes; look at one of them"):
        previews(split)


def test_finished_pictures_are_kept_and_bounded(
    at: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = previews(at.shards, at.images)
    first = looked.thumbnail(0)
    assert first is not None
    assert looked.thumbnail(0) is first
    monkeypatch.setattr("shardwright.looking.pictures._CACHE", 2 * len(first))
    for number in range(1, 10):
        looked.thumbnail(number)
    assert looked.thumbnail(0) is not first, "the oldest is gone"
    assert looked.thumbnail(0) == first
