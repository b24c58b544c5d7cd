"""Finding models: folders, complete pipelines, the hub, and the messages if there is none.

The hub's library reads its settings when it is imported, so what concerns the hub runs in
processes of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from shardwright.encoders import checkpoints
from shardwright.encoders.checkpoints import Checkpoint, Layout, find
from shardwright.errors import InputMissingError, UsageError
from shardwright.recipes import SPECIFICATION
from tests.derive.encoders.hub import COMMIT, serving
from tests.derive.encoders.models import with_model

COMPONENT = next(component for component in SPECIFICATION.components if component.name == "vae")
LAYOUT = Layout(("config.json",), weights="diffusion_pytorch_model")
TEXT = Layout(("config.json",), weights="model", tokenizer=("tokenizer.json", "vocab.json"))
SOURCES = Path(__file__).parents[3] / "src"

# Finds models as one run does, fetches their weights, and prints what it found or why not.
SCRIPT = """
import json, sys
from shardwright.encoders import checkpoints
from shardwright.errors import ShardwrightError
from tests.derive.encoders.models import with_model
from tests.derive.encoders.test_checkpoints import COMPONENT, LAYOUT, TEXT
checkpoints._SECONDS, models = float(sys.argv[1]), {}
for asked in sys.argv[2:]:
    model, _, subfolder = asked.partition(" ")
    place, layout = ({"subfolder": subfolder}, TEXT) if subfolder else ({}, LAYOUT)
    try:
        found = checkpoints.find(with_model(COMPONENT, model, **place), layout, models)
        weights = found.fetch_weights() / f"{layout.weights}.safetensors"
        said = dict(found.identity, config=found.read("config.json"), bytes=weights.read_text())
        if layout.tokenizer:
            said["tokenizer"] = found.tokenizer_folder.name
    except ShardwrightError as error:
        said = {"error": str(error)}
    print(json.dumps(said))
"""


def ask_hub(
    cache: Path, *models: str, seconds: float = 5, **environment: str
) -> list[dict[str, object]]:
    """Look for models (``ID`` or ``ID SUBFOLDER``) in a process of its own, which prints no more.

    It waits so many seconds for the hub.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(seconds), *models],
        env=kept | {"HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"} | environment,
        cwd=SOURCES.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def make_folder(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "diffusion_pytorch_model.safetensors").write_bytes(weights)
    return folder


def found(folder: Path | str) -> Checkpoint:
    return find(with_model(COMPONENT, folder), LAYOUT, {})


def test_the_subfolder_of_a_complete_pipeline_is_found(tmp_path: Path) -> None:
    make_folder(tmp_path / "pipeline" / "vae")
    (tmp_path / "pipeline" / "model_index.json").write_text("{}")
    checkpoint = found(tmp_path / "pipeline")
    assert checkpoint.fetch_weights() == tmp_path / "pipeline" / "vae"
    assert checkpoint.identity["model"] == "pipeline"
    assert found(make_folder(tmp_path / "bare")).fetch_weights() == tmp_path / "bare"


def test_a_hash_stands_for_the_files_and_not_for_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "one" / "model")
    identity = found(folder).identity
    assert identity.keys() == {"model", "sha256"}
    monkeypatch.chdir(tmp_path / "one")
    assert found("model").identity == identity
    assert found(shutil.copytree(folder, tmp_path / "two" / "model")).identity == identity
    assert found(make_folder(tmp_path / "three" / "model", b"others")).identity != identity
    (folder / "README.md").write_text("not used")
    assert found(folder).identity == identity
    (folder / "config.json").write_text('{"a": 2}')
    assert found(folder).identity != identity


def test_weights_in_several_files_are_all_in_the_hash(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    single = folder / "diffusion_pytorch_model.safetensors"
    parts = [folder / f"diffusion_pytorch_model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for part in parts:
        shutil.copy(single, part)
    single.unlink()
    before = found(folder).identity
    parts[1].write_bytes(b"others")
    assert found(folder).identity != before


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match=r"no such folder.*--model vae=FOLDER"):
        found(tmp_path / "missing")
    with pytest.raises(InputMissingError, match="no such folder"):
        found("./missing")
    (tmp_path / "ae.safetensors").write_bytes(b"")
    with pytest.raises(InputMissingError, match=r"ae\.safetensors: is not a folder"):
        found(tmp_path / "ae.safetensors")


def test_a_folder_without_its_files_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    checkpoint = found(folder)
    (folder / "diffusion_pytorch_model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputMissingError, match=r"has no diffusion_pytorch_model\.safetensors"):
        checkpoint.fetch_weights()
    for text in ("{", "[]", "\0"):
        (folder / "config.json").write_text(text)
        with pytest.raises(UsageError, match=r"config\.json: "):
            checkpoint.read("config.json")
    (folder / "config.json").unlink()
    with pytest.raises(InputMissingError, match=r"model: has no config\.json"):
        checkpoint.read("config.json")


PIPELINE = {
    "model_index.json": b"{}",
    "flux1-dev.safetensors": b"24 gigabytes",
    "transformer/config.json": b"{}",
    "vae/config.json": b'{"a": 1}',
    "vae/diffusion_pytorch_model.safetensors": b"weights",
    "vae/diffusion_pytorch_model.fp16.safetensors": b"others",
}


def test_of_a_model_on_the_hub_only_what_is_used_is_fetched_and_only_once(tmp_path: Path) -> None:
    expected = {
        "model": "some/pipeline",
        "revision": COMMIT,
        "config": {"a": 1},
        "bytes": "weights",
    }
    with serving({"some/pipeline": PIPELINE}) as hub:
        both = ("some/pipeline", f"some/pipeline@{COMMIT}")
        assert ask_hub(tmp_path, *both, HF_ENDPOINT=hub.url) == [expected, expected]
        assert hub.sent == ["vae/config.json", "vae/diffusion_pytorch_model.safetensors"]
    assert ask_hub(tmp_path, "some/pipeline", HF_ENDPOINT=hub.url) == [expected]  # now it is gone
    assert ask_hub(tmp_path, "some/pipeline", HF_HUB_OFFLINE="1") == [expected]


def test_a_run_asks_the_hub_once_about_the_models_of_one_pipeline(tmp_path: Path) -> None:
    weights = {"vae": LAYOUT.weights, "text_encoder": "model", "text_encoder_2": "model"}
    files = {f"{folder}/config.json": f'{{"a": "{folder}"}}'.encode() for folder in weights}
    files |= {f"{folder}/{stem}.safetensors": folder.encode() for folder, stem in weights.items()}
    asked = ["a/b", "a/b text_encoder", "a/b text_encoder_2", "a/b text_encoder_2"]
    with serving({"a/b": files}) as hub:
        found = ask_hub(tmp_path, *asked, HF_ENDPOINT=hub.url)
        # Whether it answers, and what the library asks to begin with.
        assert hub.asked == ["info", "revision", "tree"]
        assert sorted(hub.sent) == sorted(files)
    assert [said["bytes"] for said in found] == [*weights, "text_encoder_2"]


def test_of_a_text_encoder_on_the_hub_the_tokenizer_beside_it_is_fetched(tmp_path: Path) -> None:
    files = {
        f"{folder}/{name}": f"{folder} {name}".encode()
        for folder in ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
        for name in ("model.safetensors", "model.fp16.safetensors", "vocab.json", "other.txt")
    }
    files["text_encoder_2/config.json"] = b'{"a": 2}'
    del files["text_encoder_2/vocab.json"]
    with serving({"some/pipeline": files}) as hub:
        (said,) = ask_hub(tmp_path, "some/pipeline text_encoder_2", HF_ENDPOINT=hub.url)
        fetched = sorted(hub.sent)
    assert fetched == [
        "text_encoder_2/config.json",
        "text_encoder_2/model.safetensors",
        "tokenizer_2/vocab.json",
    ]
    assert (said["tokenizer"], said["config"]) == ("tokenizer_2", {"a": 2})
    assert said["bytes"] == "text_encoder_2 model.safetensors"


def test_the_hub_s_refusals_are_explained(tmp_path: Path) -> None:
    with serving({"some/model": PIPELINE}, gated=frozenset({"some/model"})) as hub:
        asked = ("some/model", "no/model", "some/model@v9")
        gated, unknown, revision = ask_hub(tmp_path, *asked, HF_ENDPOINT=hub.url)
    assert "some/model: you have not accepted its licence; accept it at " in str(gated["error"])
    assert "https://huggingface.co/some/model" in str(gated["error"])
    assert "no/model: no such folder here, and no such model on the hub" in str(unknown["error"])
    assert "some/model: has no such revision" in str(revision["error"])


def test_without_a_network_a_model_fails_at_once_and_says_what_to_do(tmp_path: Path) -> None:
    began = time.monotonic()
    (unasked,) = ask_hub(tmp_path, "some/model", HF_HUB_OFFLINE="1")
    (unheard,) = ask_hub(tmp_path, "some/model", HF_ENDPOINT="http://127.0.0.1:9")
    offline, refused = str(unasked["error"]), str(unheard["error"])
    assert time.monotonic() - began < 20
    assert "HF_HUB_OFFLINE is set" in offline
    assert "the hub cannot be reached" in refused
    assert "Connection refused" in refused
    for text in (offline, refused):
        assert text.startswith("some/model: no such folder here, not in the hub's cache, and ")
        assert text.endswith("--model vae=FOLDER")


def test_a_hub_that_never_answers_is_given_up_within_seconds_and_asked_once(tmp_path: Path) -> None:
    assert checkpoints._SECONDS <= 5
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        models = ("some/model", "some/model text_encoder", "some/model")
        said = ask_hub(tmp_path, *models, seconds=0.5, HF_ENDPOINT=endpoint)
        assert time.monotonic() - began < 20
        assert _connections(silent) <= 2  # the hub's library may try again
    for one in said:
        assert "the hub cannot be reached (timed out)" in str(one["error"])


def _connections(server: socket.socket) -> int:
    """Count the connections that wait to be accepted."""
    server.settimeout(0)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def test_without_the_encode_extra_the_pip_line_is_named(tmp_path: Path) -> None:
    # An environment with only what the core needs: its own requirements, and no extra.
    for requirement in metadata.requires("shardwright") or []:
        if "extra ==" not in requirement:
            wanted = metadata.distribution(re.split(r"[^\w.-]", requirement)[0])
            for name in {file.parts[0] for file in wanted.files or []} - {".."}:
                (tmp_path / name).symlink_to(str(wanted.locate_file(name)))
    script = (
        "from shardwright.encoders import load\n"
        "from shardwright.encoders.base import Options\n"
        "from shardwright.errors import MissingExtraError\n"
        "from shardwright.recipes import SPECIFICATION\n"
        "for component in SPECIFICATION.components:\n"
        "    try: load('pretrained', component, Options(), {})\n"
        "    except MissingExtraError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": f"{SOURCES}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == len(SPECIFICATION.components)
    for line in lines:
        assert "need torch" in line
        assert "pip install '.[encode]' in the checkout" in line
