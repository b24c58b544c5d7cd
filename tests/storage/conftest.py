from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shardwright.storage import objects, urls
from shardwright.storage.urls import Url
from tests.flaky import Flaky, _Handler, flaky
from tests.servers import new_bucket, new_container, use_azure, use_s3


@pytest.fixture(params=["moto", "ministack", "azurite"])
def root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Url]:
    """A new bucket or container at each of the servers in turn."""
    server = request.getfixturevalue(request.param)
    if request.param == "azurite":
        use_azure(monkeypatch, server)
        yield new_container(server)
    else:
        use_s3(monkeypatch, server)
        yield new_bucket(server)
    urls._store.cache_clear()


@pytest.fixture
def proxy(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    """A server that fails when it is told to, in front of moto; clients soon give up."""
    monkeypatch.setenv("SHARDWRIGHT_TIMEOUT", "1")
    monkeypatch.setattr(objects, "_FIRST_PAUSE", 0.01)
    with flaky(moto) as server:
        use_s3(monkeypatch, server.url)
        yield server
        urls._store.cache_clear()


Answer = tuple[int, list[tuple[str, str]], bytes]


@pytest.fixture
def completing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Answer]], None]:
    """Let a function answer the requests to ``proxy`` that complete uploads."""
    pass_on = _Handler._pass_on

    def use(answer: Callable[..., Answer]) -> None:
        def answered(self: _Handler, body: bytes) -> Answer:
            completes = self.command == "POST" and "uploadId=" in self.path
            return answer(self, body, pass_on) if completes else pass_on(self, body)

        monkeypatch.setattr(_Handler, "_pass_on", answered)

    return use
