"""The table of cases: what each starts from, and its steps.

A step is a ``shardwright`` command, or what a user does between two of them: the words that
``workshop.Steps`` knows. All files are made by ``inputs``. Without paths, commands use
data/approved, data/derived and data/shards. In the layout ``flux`` every command has --json.
"""

from __future__ import annotations

from dataclasses import dataclass

LAYOUTS = ("prx", "flux")
# What the words in braces are in each layout.
WORDS = {
    "prx": {"{bucket}": "832x1216", "{other_fit}": "bucket"},
    "flux": {"{bucket}": "48x72", "{other_fit}": "original"},
}


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    after: str  # the case whose end it starts from, or ``inputs``
    steps: tuple[str, ...]
    engines: tuple[str, ...] = ()  # that leave the same files
    again: str | None = None  # killed in its last step, that step with these flags ends the same
    layouts: tuple[str, ...] = LAYOUTS
    url: bool = False  # it needs an object store
    files: str = ""  # what it leaves is compared, where this expression is found in the path


def case(name: str, after: str, *steps: str, engines: str = "", **options: object) -> Case:
    return Case(name, after, steps, tuple(engines.split()), **options)  # type: ignore[arg-type]


PRX = ("prx",)
DERIVE = "shardwright derive --encoders sketch"
BUILD = "shardwright build --encoders sketch --shard-size 2"
PACK = "shardwright pack --shard-size 2"
REFIT = "shardwright derive --recompute vae --fit {other_fit}"
REMAKE = (
    "shardwright build --from data/shards --components t5 --recipe longer.toml --output-dir longer"
)
TO_URL = "--output-dir s3://golden/shards"
# A picture is painted again, a caption is corrected, one file is renamed, and one is gone.
CHANGES = (
    "picture data/approved/bread.png 38 26 22",
    "write data/approved/cloud.txt 'a cloud, corrected'",
    "mv data/approved/door.png data/approved/gate.png",
    "mv data/approved/door.txt data/approved/gate.txt",
    "rm data/approved/field.png data/approved/field.txt",
)
# The three forms of verify.
VERIFY = (
    "shardwright verify data/shards",
    "shardwright verify data/shards --read-data",
    "shardwright verify data/shards --against data/derived",
)
MORE = (
    "picture data/approved/iron.png 26 38 21",
    "write data/approved/iron.txt 'a new picture of iron'",
    "write data/approved/silent.txt 'not silent any more'",
)

STORES = (
    case("derive", "inputs", DERIVE, engines="two", again=""),
    case("derive-dry-run", "inputs", f"{DERIVE} --dry-run"),
    case("derive-trial", "inputs", f"{DERIVE} --trial 2"),
    case("derive-again", "derive", "shardwright derive", "shardwright derive --dry-run"),
    case("derive-more", "derive", *MORE, "shardwright derive", engines="two"),
    case("derive-captions", "inputs", f"{DERIVE} --captions captions.jsonl", engines="two"),
    case("derive-ids", "derive", "shardwright derive --ids path --update"),
    case("derive-no-images", "inputs", "shardwright derive nowhere --encoders sketch"),
    case(
        *("derive-bad-flag", "inputs", "shardwright derive --nope", f"{DERIVE} --trial 0"),
        *(f"{DERIVE} --recompute nope", f"{DERIVE} --device nope", f"{DERIVE} --fit nope"),
    ),
    case("derive-parts", "inputs", f"{DERIVE} --components vae", "shardwright status", DERIVE),
    case(
        *("derive-elsewhere", "inputs"),
        f"{DERIVE} --recipe longer.toml --derived-dir other --jsonl other.jsonl",
        "shardwright status other --jsonl other.jsonl --output-dir packed",
        "shardwright pack other --jsonl other.jsonl -o packed --recipe longer.toml",
    ),
    case(
        *("derive-interrupted", "inputs", f"killed apple.npy {DERIVE}", "shardwright pack"),
        *(f"killed failures.jsonl {DERIVE}", "shardwright status", "shardwright verify", DERIVE),
    ),
    case(
        *("update-interrupted", "pack", *CHANGES, "killed bread.npy shardwright derive --update"),
        *("shardwright status", "shardwright verify", "shardwright pack --sync --dry-run"),
        "shardwright derive --update",
    ),
    case(
        *("derive-other-settings", "derive", "shardwright derive --fit {other_fit}"),
        "shardwright derive --fit {other_fit} --dry-run",
    ),
    case(
        *("recompute", "derive", f"{REFIT} --dry-run"),
        REFIT,
        *("shardwright status", "shardwright verify"),
        engines="two",
    ),
    case(
        *("recompute-fit", "derive", REFIT),
        again="",
    ),
    case(
        *("recompute-captions", "derive", "write data/approved/cloud.txt 'a cloud, corrected'"),
        "shardwright derive --recompute t5",
    ),
    case(
        *("recompute-failed", "derive", "write data/approved/cloud.png 'no picture'"),
        *(REFIT, "shardwright status", "shardwright pack"),
        *("shardwright derive --recompute none", REFIT, f"{REFIT} --drop-failed"),
    ),
    case("changed", "pack", *CHANGES, "shardwright status", "shardwright derive"),
    case("update-dry-run", "pack", *CHANGES, "shardwright derive --update --prune --dry-run"),
    case("update", "pack", *CHANGES, "shardwright derive --update", engines="two", again=""),
    case("prune", "pack", *CHANGES, "shardwright derive --update --prune", engines="two", again=""),
    case(
        *("prune-below", "derive", "rm data/approved/more/house.png data/approved/more/house.txt"),
        "picture other/kite.png 26 38 22",
        "write other/kite.txt 'a kite elsewhere'",
        "shardwright derive other",
        "shardwright derive other --prune-below data/approved/more --dry-run",
        "shardwright derive other --prune-below data/approved/more",
    ),
    case("update-nothing", "derive", "shardwright derive --update --prune"),
    case(
        *("migrate-dry-run", "inputs", "shardwright migrate --derived-dir stage1 --dry-run"),
        "shardwright migrate --derived-dir stage1 --dry-run --json",
        layouts=PRX,
    ),
    case(
        *("migrate", "inputs", "shardwright migrate --derived-dir stage1"),
        engines="two",
        again="",
        layouts=PRX,
    ),
    case(
        *("migrate-no-backup", "inputs"),
        "shardwright migrate --derived-dir stage1 --no-backup --json",
        layouts=PRX,
    ),
    case(
        *("migrate-again", "migrate", "shardwright migrate --derived-dir stage1"),
        *("shardwright status stage1", "shardwright verify stage1"),
        "shardwright pack --derived-dir stage1",
        layouts=PRX,
    ),
    case("status", "derive", "shardwright status", "shardwright status --json"),
    case("status-nothing", "inputs", "shardwright status"),
    case(
        *("status-export", "pack-more", "shardwright status --export table.csv"),
        "shardwright status --export table.jsonl",
    ),
)

PACKS = (
    case("pack", "derive", f"{PACK} --sha256", engines="two ray", again="--resume"),
    case("pack-dry-run", "derive", f"{PACK} --dry-run", f"{PACK} --dry-run --limit 3 --json"),
    case(
        *("pack-dry-runs", "pack", f"{PACK} --overwrite --bucket {{bucket}} --dry-run"),
        *(f"{PACK} --sha256 --resume --dry-run", f"{PACK} --dry-run --output-dir other --shuffle"),
        f"{PACK} --split val=40% --bucket {{bucket}} --dry-run --output-dir other",
    ),
    case(
        "pack-more", "derive-more", "shardwright pack", "shardwright pack --resume", engines="two"
    ),
    case("pack-limit", "derive", f"{PACK} --shuffle --seed 3 --limit 4", engines="two ray"),
    case(
        *("pack-bucket", "derive", f"{PACK} --bucket {{bucket}}", "shardwright status"),
        engines="two ray",
    ),
    case(
        *("pack-split", "derive", f"{PACK} --split val=40%", "shardwright verify data/shards"),
        engines="two ray",
        again=None,
    ),
    case("pack-split-more", "pack-split", *MORE, "shardwright derive", "shardwright pack --append"),
    case("pack-split-by", "derive-captions", f"{PACK} --split val=50% --split-by scene"),
    case(
        *("pack-where", "derive", f"{PACK} --where 'width < 38 and caption !~ \"bread\"'"),
        "shardwright pack --dry-run --where 'scene = 1' --output-dir other",
        f"{PACK} --ids-file good.txt --output-dir listed",
        f"{PACK} --exclude-ids-file good.txt --output-dir unlisted",
    ),
    case(
        *(
            "pack-append",
            "pack",
            *MORE,
            "shardwright derive",
            "shardwright pack --append --dry-run",
        ),
        "shardwright pack --append --shard-size 2",
        engines="two ray",
        again="",
    ),
    case("pack-append-nothing", "pack", "shardwright status", "shardwright pack --append"),
    case(
        *("pack-overwrite", "pack", f"{PACK} --overwrite --shuffle --dry-run"),
        "shardwright pack --overwrite --shuffle --shard-size 3",
        engines="two ray",
        again="",
    ),
    case(
        *("pack-overwrite-bucket", "pack"),
        "shardwright pack --overwrite --bucket {bucket} --shard-size 1",
        engines="two ray",
    ),
    case(
        *("pack-sync", "prune", "shardwright status", "shardwright pack --append"),
        *("shardwright pack --sync --dry-run", "shardwright pack --sync"),
        engines="two ray",
        again="",
    ),
    case("pack-sync-nothing", "pack", "shardwright pack --sync"),
    case(
        *("pack-sync-list", "pack", "shardwright pack --sync --exclude-ids-file good.txt"),
        "shardwright pack --sync --dry-run --where 'width = 32'",
        engines="two",
    ),
    case(
        *("pack-resume-damaged", "pack", "flip data/shards/bucket_{bucket}/shard-000000.tar 600"),
        f"{PACK} --sha256 --resume",
    ),
    case("pack-exists", "pack", PACK, f"{PACK} --dry-run"),
    case(
        *("pack-other-settings", "pack", "picture data/approved/iron.png 26 38 21"),
        "write data/approved/iron.txt 'a new picture of iron'",
        *(REFIT, "shardwright pack --append"),
        *("shardwright pack --sync", f"{PACK} --resume"),
    ),
    case(
        *("pack-interrupted", "derive", f"killed shard-000001.tar {PACK}", "shardwright status"),
        *("shardwright verify data/shards", PACK, "shardwright pack --resume", f"{PACK} --resume"),
    ),
    case(
        *("pack-started-over", "derive", f"killed shard-000001.tar.tmp {PACK}"),
        *("shardwright verify data/shards", "shardwright pack --overwrite"),
    ),
    case(
        *("pack-sync-interrupted", "prune", "killed .tar shardwright pack --sync"),
        *("shardwright verify data/shards", "shardwright pack --append", "shardwright pack --sync"),
    ),
    case("pack-other-split", "pack-split", f"{PACK} --append --split val=10%"),
    case("pack-no-store", "inputs", "shardwright pack", "shardwright pack --derived-dir data"),
    case("pack-nothing", "derive", "shardwright pack --where 'width > 9000'"),
    case(
        *("pack-bad-flag", "derive", "shardwright pack --nope", "shardwright pack --limit 0"),
        *("shardwright pack --append --overwrite", "shardwright pack --where 'width >'"),
        *("shardwright pack --bucket 8x", "shardwright pack --split val=200%", "shardwright"),
        "shardwright nope",
    ),
    case(
        *("pack-no-space", "derive", "mount small 64k"),
        *(f"{PACK} --output-dir small/shards", f"{PACK} --output-dir small/shards --dry-run"),
        f"{PACK} --output-dir small/shards --ignore-space",
    ),
    case(
        *("pack-locked", "pack", "hold 3 shardwright pack --overwrite", "shardwright pack --sync"),
        *("shardwright index --for hf", "shardwright verify data/shards"),
    ),
)

BUILDS = (
    case("build", "inputs", BUILD, engines="two ray", again=""),
    case("build-dry-run", "inputs", f"{BUILD} --dry-run", f"{BUILD} --dry-run --limit 2 --json"),
    case("build-dry-run-split", "inputs", f"{BUILD} --split val=40% --dry-run"),
    case(
        *("build-lists", "inputs", f"{BUILD} --ids path --ids-file good.txt -o listed"),
        f"{BUILD} --exclude-ids-file good.txt --shuffle --seed 3",
    ),
    case("build-overwrite-dry-run", "build", f"{BUILD} --overwrite --dry-run"),
    case("build-again", "build", BUILD, "shardwright build --append"),
    case(
        *("build-interrupted", "inputs", f"killed commits/000001-*.json {BUILD}"),
        *("shardwright verify data/shards", "shardwright status", f"{BUILD} --fit {{other_fit}}"),
        *(f"{BUILD} --dry-run", "shardwright pack --derived-dir stage1", BUILD),
    ),
    case(
        *("build-append", "build", *MORE, "shardwright build --append --dry-run"),
        "shardwright build --append",
        engines="two ray",
        again="",
    ),
    case("build-append-to-pack", "pack", *MORE, "shardwright build --append"),
    case(
        "build-overwrite",
        "build",
        f"{BUILD} --overwrite --shuffle --limit 4",
        engines="two",
        again="",
    ),
    case("build-split", "inputs", f"{BUILD} --split val=40%", engines="two", again=""),
    case(
        "build-captions",
        "inputs",
        f"{BUILD} --captions captions.jsonl --split val=50% --split-by scene",
    ),
    case("build-where", "inputs", f"{BUILD} --where 'width < 38' --bucket {{bucket}} --sha256"),
    case(
        "build-tar",
        "inputs",
        f"{BUILD} tars/00000.tar",
        "shardwright verify data/shards",
        engines="two ray",
    ),
    case("build-both", "inputs", f"{BUILD} tars data/approved", engines="two"),
    case(
        *("build-from", "build", f"{REMAKE} --dry-run"),
        REMAKE,
        "shardwright verify longer --read-data",
        engines="two ray",
    ),
    case(
        *("build-from-killed", "build"),
        REMAKE,
        again="",
    ),
    case("build-exists", "pack", BUILD, f"{BUILD} --dry-run"),
    case(
        *("build-other-settings", "build", *MORE, "shardwright build --append --fit {other_fit}"),
        "shardwright build --append --fit {other_fit} --dry-run",
    ),
    case(
        "build-no-images",
        "inputs",
        "shardwright build nowhere",
        "shardwright build tars/captions.tar",
    ),
    case(
        "build-bad-flag",
        "inputs",
        "shardwright build --components t5",
        "shardwright build --shard-size x",
    ),
    case(
        *("build-no-space", "inputs", "mount small 64k", f"{BUILD} --output-dir small/shards"),
        f"{BUILD} --output-dir small/shards --dry-run",
        f"{BUILD} --output-dir small/shards --ignore-space",
    ),
    case("build-locked", "inputs", f"hold 5 {BUILD}", BUILD, f"{BUILD} --overwrite"),
    case("derive-locked", "inputs", f"hold 5 {DERIVE}", DERIVE, "shardwright status"),
    case(
        *("derive-no-space", "inputs", "mount small 8k", f"{DERIVE} --derived-dir small/store"),
        f"{DERIVE} --derived-dir small/store --dry-run",
        f"{DERIVE} --derived-dir small/store --ignore-space",
    ),
)

URLS = (
    case("build-to-url", "inputs", f"{BUILD} {TO_URL}", engines="two ray", again="", url=True),
    case(
        *("build-from-url", "inputs", "upload data/approved images", "upload tars tars"),
        f"{BUILD} s3://golden/images s3://golden/tars/00000.tar",
        engines="two ray",
        url=True,
    ),
    case(
        *("build-url-to-url", "inputs", "upload data/approved images"),
        *(f"{BUILD} s3://golden/images {TO_URL}", f"{BUILD} s3://golden/images {TO_URL}"),
        f"{BUILD} s3://golden/images {TO_URL} --shuffle",
        engines="two ray",
        url=True,
    ),
    case(
        *("build-append-at-url", "inputs", f"{BUILD} {TO_URL}", *MORE),
        f"shardwright build --append {TO_URL}",
        url=True,
    ),
    case(
        *("pack-to-url", "derive", f"{PACK} {TO_URL}", f"{PACK} {TO_URL}", *MORE),
        *("shardwright derive", f"shardwright pack {TO_URL} --append"),
        *(f"shardwright pack {TO_URL} --sync", f"shardwright pack {TO_URL} --overwrite"),
        url=True,
    ),
    case(
        *("dry-run-at-url", "derive", f"{PACK} {TO_URL} --dry-run", f"{BUILD} {TO_URL} --dry-run"),
        url=True,
    ),
    case(
        *("build-tar-to-url", "inputs", f"{BUILD} tars/00000.tar {TO_URL}"),
        engines="two ray",
        url=True,
    ),
    case(
        *("read-url", "pack", "upload data/shards shards", "shardwright verify s3://golden/shards"),
        "shardwright verify s3://golden/shards --read-data --loaders",
        "shardwright index s3://golden/shards --for wids",
        "shardwright look s3://golden/shards --id cloud",
        url=True,
    ),
)

DAMAGE = (
    case(
        *("verify", "pack", "shardwright verify", "shardwright verify --read-data"),
        *("shardwright verify data/shards", "shardwright verify data/shards --read-data --loaders"),
        "shardwright verify data/shards --against data/derived",
        "shardwright verify data/shards --against data/approved --samples 4",
        engines="two ray",
    ),
    case(
        *("verify-build", "build", "shardwright verify data/shards --against data/approved"),
        "shardwright verify data/shards --json",
    ),
    case("verify-outdated", "prune", "shardwright verify data/shards --against data/derived"),
    case("verify-nothing", "inputs", "shardwright verify", "shardwright verify nowhere"),
    case(
        *("damage-array", "derive", "rm data/derived/vae_latents/apple.npy"),
        *("cut data/derived/t5_hidden/bread.npy 300", "flip data/derived/vae_latents/cloud.npy 20"),
        "cp data/derived/vae_latents/door.npy data/derived/vae_latents/orphan.npy",
        *("shardwright verify", "shardwright verify --read-data", "shardwright status", PACK),
        "shardwright derive",
    ),
    case(
        *("damage-jsonl", "derive", "flip data/derived/approved_image_dataset.jsonl 1"),
        *("shardwright verify", "shardwright verify --read-data", "shardwright status", PACK),
        "shardwright derive",
    ),
    case(
        *("damage-record", "derive", "write data/derived/.shardwright/provenance.json '{'"),
        *("shardwright verify", "shardwright status", PACK, "shardwright derive"),
    ),
    case(
        *("damage-byte", "pack", "flip data/shards/bucket_{bucket}/shard-000000.tar 2000"),
        *VERIFY,
    ),
    case(
        *("damage-length", "pack", "cut data/shards/bucket_{bucket}/shard-000000.tar 5000"),
        *VERIFY,
    ),
    case(
        *("damage-gone", "pack", "rm data/shards/bucket_{bucket}/shard-000000.tar"),
        *(*VERIFY, "shardwright pack --append", "shardwright build --append"),
        *("shardwright status", "shardwright look data/shards --id apple"),
    ),
    case(
        *(
            "damage-index",
            "pack",
            "flip data/shards/.shardwright/index/bucket_{bucket}/shard-000000.idx -9",
        ),
        *(*VERIFY, "shardwright pack --append", "shardwright index --for dali"),
    ),
    case(
        *("damage-manifest", "pack", "flip data/shards/.shardwright/manifest.json 100"),
        *(*VERIFY, "shardwright pack --append", "shardwright index --for hf"),
        *("shardwright look data/shards --id apple", "shardwright build --append"),
    ),
    case(
        *("damage-no-manifest", "pack", "rm data/shards/.shardwright/manifest.json"),
        *(*VERIFY, "shardwright pack --append", PACK),
    ),
    case(
        *(
            "damage-foreign",
            "pack",
            "cp tars/00000.tar data/shards/bucket_{bucket}/shard-000009.tar",
        ),
        *(*VERIFY, "shardwright pack --append"),
    ),
    case(
        "foreign-shards",
        "inputs",
        "shardwright verify tars --read-data",
        "shardwright look tars --id 000001",
    ),
)

SHOWN = (
    case(
        *("look", "derive", "shardwright look data/derived --report report.html --samples 4"),
        "shardwright look data/derived --duplicates copies.jsonl --threshold 0.9",
        "shardwright look data/derived --id eagle --save eagle.png",
        "shardwright look data/derived --id nowhere",
        "shardwright look data/derived --duplicates copies.jsonl --component vae",
        "rm eagle.png",
    ),
    case(
        *("look-shards", "pack", "shardwright look data/shards --report report.html"),
        "shardwright look data/shards --duplicates copies.jsonl",
        "shardwright look data/shards --id eagle",
        "shardwright look data/shards --compare data/derived --report compared.html",
    ),
    case(
        *("look-moved", "derive", "mv data/approved/eagle.png data/approved/more/eagle.png"),
        "shardwright look data/derived --id eagle",
        "shardwright look data/derived --id eagle --images data/approved/more",
    ),
    case("look-nothing", "inputs", "shardwright look", "shardwright look nowhere --id a"),
    *(
        case(
            *(f"index-{loader}", "pack", f"shardwright index --for {loader}"),
            *(f"shardwright index --for {loader}", "shardwright verify data/shards --loaders"),
        )
        for loader in ("energon", "dali", "wids", "webshart", "hf")
    ),
    case(
        *("index-remove", "index-hf", "shardwright index --for hf --remove"),
        *("shardwright index --for nothing", "shardwright index nowhere --for hf"),
    ),
    case(
        *("recipe", "derive", "shardwright recipe", "shardwright recipe --list"),
        *("shardwright recipe sd3", "shardwright recipe longer.toml", "shardwright recipe nowhere"),
        *(
            "shardwright recipe --derived-dir data/derived",
            "shardwright recipe sdxl --init mine.toml",
        ),
        *("write bad.toml 'extends = 1'", "shardwright recipe bad.toml"),
    ),
    case(
        "bad-flag",
        "inputs",
        *(
            f"shardwright {name} --nope"
            for name in ("migrate", "status", "verify", "look", "index", "recipe", "demo")
        ),
    ),
    # In the other layout every command has --json.
    case(
        *("json", "pack", "shardwright pack --json", f"{PACK} --sha256 --resume --json"),
        *("shardwright verify data/shards --json", "shardwright verify nowhere --json"),
        "shardwright look data/shards --duplicates copies.jsonl --json",
        "shardwright recipe --json",
        *("shardwright index --for hf --json", "shardwright index --for hf --remove --json"),
        *("flip data/shards/bucket_{bucket}/shard-000000.tar 2000", "shardwright derive --json"),
        "shardwright verify data/shards --against data/derived --json",
        layouts=PRX,
    ),
    case(
        *("demo", "inputs", "shardwright demo shown --pictures 3"),
        files=r"\.(tar|npy|png|txt|html|toml)$",  # others hold the times of its pictures
    ),
    case(
        "completion",
        "inputs",
        *(f"shardwright completion {name}" for name in ("bash", "zsh", "fish")),
    ),
)

CASES = {case.name: case for case in (*STORES, *PACKS, *BUILDS, *URLS, *DAMAGE, *SHOWN)}
