"""Object stores on this machine: real servers, each a process on a free port of 127.0.0.1."""

from __future__ import annotations

import base64
import hmac
import os
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Literal

import pytest

from shardwright.storage import urls
from shardwright.storage.urls import Url

_VENV = Path(__file__).parents[1] / ".venv"
_BIN = _VENV / "servers/bin"
_AZURITE = _VENV / "azurite/node_modules/.bin/azurite-blob"
KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
# The account that every Azurite has.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

# Moto lists the folder of its modules at each request, which takes half of the time.
_MOTO = """
import moto.backends, moto.server
names = list(moto.backends.list_of_moto_modules())
moto.backends.list_of_moto_modules = lambda: names
moto.server.main()
"""

_TRIES = 5  # another process may take the port first

Kind = Literal["moto", "ministack", "rclone", "azurite"]


@contextmanager
def running(kind: Kind, folder: Path, **settings: str) -> Iterator[str]:
    """Run a server that keeps its files in a folder, with an environment, and give its URL."""
    for _ in range(_TRIES):
        port = _free_port()
        command, environment = _command(kind, port, folder)
        with (folder / f"{kind}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | environment | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            if _answers(process, port):
                yield f"http://127.0.0.1:{port}"
                return
        finally:
            process.terminate()
            try:
                process.wait(50)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    raise RuntimeError(f"{kind} did not start in {_TRIES} tries:\n{_log(kind, folder)}")


def _command(kind: Kind, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Give the command that starts a server, and its environment."""
    if kind == "moto":
        python = str(_BIN / "python")
        return [python, "-c", _MOTO, "-H", "127.0.0.1", "-p", str(port)], {}
    if kind == "ministack":
        return [str(_BIN / "ministack")], {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "IOT_MTLS_ENABLED": "0",  # it listens on all interfaces
            "SERVICES": "s3",
        }
    if kind == "rclone":
        files = folder / "rclone"
        files.mkdir(exist_ok=True)
        address = f"127.0.0.1:{port}"
        return [str(_BIN / "rclone"), "serve", "s3", "--addr", address, str(files)], {}
    return [
        *(str(_AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
        *("--silent", "--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry"),
    ], {}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a server takes connections; say whether it does."""
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


def _log(kind: Kind, folder: Path) -> str:
    return (folder / f"{kind}.log").read_text(errors="replace")[-2000:]


def use_s3(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    """Let S3 clients, also those of other processes, use this server, and nothing of the user's."""
    import tests.clients  # noqa: F401 - here, as most tests need no boto3

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    urls._store.cache_clear()


def new_bucket(server: str, name: str = "") -> Url:
    """Make a bucket at an S3 server."""
    name = name or f"bucket-{uuid.uuid4().hex[:12]}"
    urllib.request.urlopen(urllib.request.Request(f"{server}/{name}", method="PUT")).close()
    return Url(f"s3://{name}")


def use_azure(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    """Let Azure clients, also those of other processes, use this server."""
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{server}/{ACCOUNT}")
    urls._store.cache_clear()


def new_container(server: str) -> Url:
    """Make a container at an Azure server: obstore cannot."""
    name = f"container-{uuid.uuid4().hex[:12]}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    text = "\n".join([*lines, f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])
    signature = hmac.digest(base64.b64decode(ACCOUNT_KEY), text.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    url = f"{server}/{ACCOUNT}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()
    return Url(f"az://{name}")


def _server(kind: Kind, factory: pytest.TempPathFactory) -> Iterator[str]:
    if not (_AZURITE if kind == "azurite" else _BIN / "moto_server").exists():
        pytest.skip(f"{kind} is installed by make test")
    with running(kind, factory.mktemp(kind)) as server:
        yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of moto's S3 server."""
    yield from _server("moto", tmp_path_factory)


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of another S3 server."""
    yield from _server("ministack", tmp_path_factory)


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 server that ignores conditions."""
    yield from _server("rclone", tmp_path_factory)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an Azure server."""
    yield from _server("azurite", tmp_path_factory)


@pytest.fixture
def bucket(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Url]:
    """A new bucket at moto's S3 server, which the environment names, also to other processes."""
    use_s3(monkeypatch, moto)
    yield new_bucket(moto)
    urls._store.cache_clear()
