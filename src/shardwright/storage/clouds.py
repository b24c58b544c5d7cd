"""Azure (``az://``) and Google Cloud Storage (``gs://``), by obstore. The one module that needs it.

Azure is tested with its emulator; Google Cloud Storage is untested. Credentials come from the
environment variables of the two (``AZURE_STORAGE_ACCOUNT_NAME``, ``GOOGLE_APPLICATION_CREDENTIALS``
and so on). A process that was forked after its parent used obstore hangs: start a fresh one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore

from shardwright.storage.objects import (
    NEW,
    TRIES,
    ConditionError,
    NoUploadError,
    Object,
    Part,
    PassingError,
    RefusedError,
    timeout,
    without_secrets,
)

_BUFFER = 1 << 24  # bytes that obstore sends in one request of an upload
_AT_ONCE = 4  # such requests at a time
_FIXES = {
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or allow it",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS, or allow it",
}
_AFTER_END = "Wanted range starting at"  # a range that begins there
_STATUS = re.compile(r"status code: (\d+)")
_CODE = re.compile(r"<Code>(\w+)</Code>")


class Cloud:
    """One container or bucket."""

    parts_at_once = 1  # obstore takes them one after the other, and sends some side by side

    def __init__(self, scheme: str, bucket: str) -> None:
        self._scheme, self._root = scheme, f"{scheme}://{bucket}"
        make = AzureStore if scheme == "az" else GCSStore
        options = {
            "allow_http": True,  # only an endpoint that the user sets has it
            "connect_timeout": timedelta(seconds=min(10, timeout())),
            "read_timeout": timedelta(seconds=timeout()),
            "timeout": timedelta(seconds=10 * timeout()),
        }
        with self._explained():
            try:
                # objects.tried repeats requests, but nobody can repeat a part of a writer.
                self._store: Any = make(
                    bucket, client_options=options, retry_config={"max_retries": 0}
                )
                self._patient: Any = make(
                    bucket, client_options=options, retry_config={"max_retries": TRIES - 1}
                )
            except exceptions.BaseError as error:
                raise RefusedError(_message(error), _FIXES[scheme]) from error
        self._writers: dict[str, Any] = {}

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        if size == 0:
            return b""
        with self._explained():
            if size is None:
                options = {"range": {"offset": start}} if start else None
                return bytes(obstore.get(self._store, key, options=options).bytes())
            try:
                return bytes(obstore.get_range(self._store, key, start=start, length=size))
            except exceptions.BaseError as error:
                if _status(error) == 416 or _AFTER_END in str(error):
                    return b""
                raise

    def head(self, key: str) -> Object | None:
        found = self._head(key)
        return None if found is None else _object(found)

    def list(self, prefix: str, after: str = "") -> Iterator[Object]:
        with self._explained():
            for page in self._store.list(prefix or None, offset=after or None, chunk_size=1000):
                # Azure may ignore the offset.
                yield from (each for each in map(_object, page) if each.key > after)

    def children(self, prefix: str) -> Sequence[str]:
        with self._explained():
            found = self._store.list_with_delimiter(prefix or None)
        names = [each["path"] for each in found["objects"]]
        names += [f"{each}/" for each in found["common_prefixes"]]
        return sorted(name[len(prefix) :] for name in names)

    def put(self, key: str, data: bytes, condition: str | None = None) -> str:
        mode: Any = "overwrite"
        if condition == NEW:
            mode = "create"
        elif condition is not None:
            found = self._head(key)  # for the version, which Google asks for instead of the etag
            if found is None or _etag(found) != condition:
                raise ConditionError("it has changed")
            mode = {name: found[name] for name in ("e_tag", "version") if found[name]}
        with self._explained():
            try:
                done = obstore.put(self._store, key, data, mode=mode, use_multipart=False)
            except FileNotFoundError as error:
                if condition:
                    raise ConditionError("it is gone") from error
                raise
        return _etag(done)

    def delete(self, keys: Sequence[str]) -> None:
        try:
            with self._explained():
                self._store.delete(keys)
        except FileNotFoundError:  # one is not there: others may have been left
            for key in keys if len(keys) > 1 else ():
                self.delete([key])

    def begin(self, key: str) -> str:
        with self._explained():
            writer = obstore.open_writer(
                self._patient, key, buffer_size=_BUFFER, max_concurrency=_AT_ONCE
            )
        name = f"{id(writer):x}"
        self._writers[name] = writer
        return name

    def part(self, key: str, upload: str, number: int, data: memoryview) -> Part:
        with self._explained(of_writer=True):
            self._writer(upload).write(data)
        return Part(number, "", hashlib.sha256(data).digest())

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], condition: str | None = None
    ) -> str:
        """Complete an upload; its condition is checked by a look before: obstore has no other."""
        if condition is not None:
            found = self._head(key)
            if (NEW if found is None else _etag(found)) != condition:
                raise ConditionError("it is there" if condition == NEW else "it has changed")
        with self._explained(of_writer=True):
            self._writer(upload).close()
        del self._writers[upload]
        done = self._head(key)
        if done is None:
            raise RefusedError("it is not there after its upload", "run the same command again")
        return _etag(done)

    def abort(self, key: str, upload: str) -> None:
        """Forget an upload; Azure removes its parts after a week, Google by a lifecycle rule."""
        self._writers.pop(upload, None)

    def uploads(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        """Give none: obstore cannot list them."""
        return iter(())

    def last_sent(self, key: str, upload: str) -> int:
        return 0

    def _head(self, key: str) -> Any:  # noqa: ANN401 - a TypedDict of obstore
        try:
            with self._explained():
                return self._store.head(key)
        except FileNotFoundError:
            return None

    def _writer(self, upload: str) -> Any:  # noqa: ANN401 - of obstore
        if upload not in self._writers:
            raise NoUploadError(upload)
        return self._writers[upload]

    @contextmanager
    def _explained(self, of_writer: bool = False) -> Iterator[None]:
        """Turn errors of obstore into ours; those of a writer have been retried by it."""
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise ConditionError(_message(error)) from error
        except (exceptions.BaseError, OSError) as error:
            what, status = _message(error), _status(error)
            if "ContainerNotFound" in what or "NoSuchBucket" in what:
                fix = "make it first, or check its name"
                raise RefusedError(f"there is no {self._root}", fix) from error
            if isinstance(error, FileNotFoundError):
                raise
            denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
            if isinstance(error, denied) or status in (401, 403):
                raise RefusedError(what, _FIXES[self._scheme]) from error
            if of_writer:
                fix = "check the network and the store, then run the same command again"
                raise RefusedError(what, fix) from error
            if not isinstance(error, exceptions.GenericError) or 400 <= status < 500:
                raise RefusedError(what) from error
            raise PassingError(what) from error


def _object(found: Any) -> Object:  # noqa: ANN401 - a TypedDict of obstore
    time = int(found["last_modified"].timestamp() * 1000) * 1_000_000
    return Object(found["path"], found["size"], time, _etag(found))


def _etag(found: Any) -> str:  # noqa: ANN401 - a TypedDict of obstore
    """Give an etag without quotes: Azure leaves them out of lists."""
    return str(found["e_tag"]).strip('"')


def _status(error: Exception) -> int:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def _message(error: Exception) -> str:
    """Give what matters of an error: the rest is for those who debug obstore."""
    text = str(error)
    if (code := _CODE.search(text)) is not None:
        return f"{_status(error)} {code[1]}"
    return without_secrets(text.strip().partition("\n")[0]).removeprefix("Generic ")
