"""S3, and servers that speak its protocol. The one module that needs boto3.

boto3 and not obstore, because only it can list and abort the uploads that a killed run has left,
complete an upload under a condition, read the checksum that the store reports, and use the
credentials of ``~/.aws``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import boto3
from botocore import exceptions
from botocore.config import Config

from shardwright.storage.objects import (
    NEW,
    ConditionError,
    NoUploadError,
    Object,
    Part,
    PassingError,
    RefusedError,
    UnsupportedError,
    timeout,
    without_secrets,
)

_AT_ONCE = 1000  # keys in a request that lists
_CONNECTIONS = 32
_MISSING = ("404", "NoSuchKey", "NotFound")
_MD5 = re.compile("[0-9a-f]{32}")
_CONFLICT = "ConditionalRequestConflict"  # two writers at once
_PASSING = {
    "BadDigest",  # what came is not what was sent
    _CONFLICT,  # who was first shows when it is repeated
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}
_ALLOW = "allow it for these credentials (to list, read, write and delete), or use others"
_CHECK = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile in ~/.aws"
_REGION = "set AWS_REGION to the region of the bucket"
_FIXES = {
    "301": _REGION,  # answers to HEAD have only a number
    "400": "renew the credentials, or " + _REGION,
    "403": _ALLOW,
    "AccessDenied": _ALLOW,
    "AuthorizationHeaderMalformed": _REGION,
    "ExpiredToken": "renew the credentials and run the same command again",
    "InvalidAccessKeyId": _CHECK,
    "InvalidToken": _CHECK,
    "NoSuchBucket": "make the bucket first, or check its name",
    "PermanentRedirect": _REGION,
    "RequestTimeTooSkewed": "set the clock of this machine",
    "SignatureDoesNotMatch": _CHECK,
}


_NO_CREDENTIALS = (
    exceptions.CredentialRetrievalError,
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.ProfileNotFound,
    exceptions.SSOError,
    exceptions.TokenRetrievalError,
)


class S3:
    """One bucket."""

    parts_at_once = 4

    def __init__(self, bucket: str) -> None:
        config = Config(
            connect_timeout=min(10, timeout()),
            read_timeout=timeout(),
            max_pool_connections=_CONNECTIONS,
            retries={"total_max_attempts": 1},  # objects.tried repeats requests, and says so
            request_checksum_calculation="when_required",  # ours are given where they help
            response_checksum_validation="when_required",
        )
        self._bucket = bucket
        with _explained():
            # A client of its own session: the default session is not safe with threads. Other
            # tools read AWS_REGION, boto3 does not.
            session = boto3.session.Session(region_name=os.environ.get("AWS_REGION"))
            self._client: Any = session.client("s3", config=config)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        if size == 0:
            return b""
        end = "" if size is None else start + size - 1
        given = {"Range": f"bytes={start}-{end}"} if start or size is not None else {}
        with _explained():
            try:
                found = self._client.get_object(Bucket=self._bucket, Key=key, **given)
            except Exception as error:
                if _code(error) in ("InvalidRange", "416"):  # it begins after the end
                    return b""
                raise
            more = start or (size is not None and found["ContentLength"] > size)
            if more and "ContentRange" not in found:
                found["Body"].close()
                fix = "use another server, or copy the files to one"
                raise RefusedError("this server ignores ranges, and sends complete files", fix)
            data: bytes = found["Body"].read()
        if len(data) != found["ContentLength"]:
            raise PassingError(
                f"the answer ended after {len(data)} of {found['ContentLength']} bytes"
            )
        return data

    def head(self, key: str) -> Object | None:
        found = self._head(key)
        if found is None:
            return None
        return Object(key, found["ContentLength"], _ns(found["LastModified"]), _etag(found))

    def _head(self, key: str, **options: str) -> Any:  # noqa: ANN401 - a dictionary of boto3
        try:
            with _explained():
                return self._client.head_object(Bucket=self._bucket, Key=key, **options)
        except FileNotFoundError:
            return None

    def list(self, prefix: str, after: str = "") -> Iterator[Object]:
        for page in self._pages("list_objects_v2", prefix, StartAfter=after):
            for found in page.get("Contents", ()):
                time = _ns(found["LastModified"])
                yield Object(found["Key"], found["Size"], time, _etag(found))

    def children(self, prefix: str) -> Sequence[str]:
        names = []
        for page in self._pages("list_objects_v2", prefix, Delimiter="/"):
            names += [found["Key"] for found in page.get("Contents", ())]
            names += [found["Prefix"] for found in page.get("CommonPrefixes", ())]
        return sorted(name[len(prefix) :] for name in names if name != prefix)

    def put(self, key: str, data: bytes, condition: str | None = None) -> str:
        sent = _text(hashlib.sha256(data).digest())
        with _explained():
            try:
                done = self._client.put_object(
                    Bucket=self._bucket,
                    Key=key,
                    Body=data,
                    ChecksumAlgorithm="SHA256",
                    ChecksumSHA256=sent,
                    **_condition(condition),
                )
            except Exception as error:
                if condition and _code(error) == "NoSuchKey":
                    raise ConditionError("it is gone") from error
                raise
        _compare(sent, done.get("ChecksumSHA256"))
        return _etag(done)

    def delete(self, keys: Sequence[str]) -> None:
        listed = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        with _explained():
            done = self._client.delete_objects(Bucket=self._bucket, Delete=listed)
        for error in done.get("Errors", ()):
            code, what = error.get("Code", ""), f"{error['Key']} was not deleted"
            if code in _PASSING:
                raise PassingError(f"{what} ({code})")
            raise RefusedError(f"{what} ({code}: {error.get('Message')})", _FIXES.get(code))

    def begin(self, key: str) -> str:
        with _explained():
            begun = self._client.create_multipart_upload(
                Bucket=self._bucket, Key=key, ChecksumAlgorithm="SHA256"
            )
        upload: str = begun["UploadId"]
        return upload

    def part(self, key: str, upload: str, number: int, data: memoryview) -> Part:
        digest = hashlib.sha256(data).digest()
        buffer: Any = data.obj
        with _explained():
            done = self._client.upload_part(
                Bucket=self._bucket,
                Key=key,
                UploadId=upload,
                PartNumber=number,
                Body=buffer if len(buffer) == len(data) else bytes(data),  # seldom a copy
                ChecksumAlgorithm="SHA256",
                ChecksumSHA256=_text(digest),
            )
        _compare(_text(digest), done.get("ChecksumSHA256"))
        return Part(number, _etag(done), digest)

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], condition: str | None = None
    ) -> str:
        listed = [
            {
                "PartNumber": part.number,
                "ETag": f'"{part.etag}"',
                "ChecksumSHA256": _text(part.sha256),
            }
            for part in parts
        ]
        try:
            with _explained():
                try:
                    done = self._client.complete_multipart_upload(
                        Bucket=self._bucket,
                        Key=key,
                        UploadId=upload,
                        MultipartUpload={"Parts": listed},
                        **_condition(condition),
                    )
                except Exception as error:
                    if _code(error) == _CONFLICT:  # an upload cannot be repeated then
                        raise ConditionError("somebody else writes it too") from error
                    raise
        except (ConditionError, NoUploadError):
            if (etag := self._equal(key, parts)) is None:
                raise
            self.abort(key, upload)
            return etag
        _compare(_joined(parts), done.get("ChecksumSHA256"))
        return _etag(done)

    def _equal(self, key: str, parts: Sequence[Part]) -> str | None:
        """Give the etag of an object, if it consists of these parts."""
        found = self._head(key, ChecksumMode="ENABLED")
        if found is None:
            return None
        etag, reported = _etag(found), found.get("ChecksumSHA256", "")
        if "-" in reported:  # of the parts; some stores report that of all bytes
            return etag if reported == _joined(parts) else None
        sums = [part.etag for part in parts]
        if not all(_MD5.fullmatch(each) for each in sums):
            return None
        joined = hashlib.md5(bytes.fromhex("".join(sums)), usedforsecurity=False).hexdigest()
        return etag if etag == f"{joined}-{len(parts)}" else None  # as S3 makes etags, if not KMS

    def abort(self, key: str, upload: str) -> None:
        with suppress(NoUploadError), _explained():
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)

    def uploads(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        for page in self._pages("list_multipart_uploads", prefix):
            for found in page.get("Uploads", ()):
                yield found["Key"], found["UploadId"], _ns(found["Initiated"])

    def last_sent(self, key: str, upload: str) -> int:
        pages = self._client.get_paginator("list_parts").paginate(
            Bucket=self._bucket, Key=key, UploadId=upload
        )
        with suppress(NoUploadError), _explained():
            return max(
                (_ns(p["LastModified"]) for page in pages for p in page.get("Parts", ())), default=0
            )
        return 0

    def _pages(self, call: str, prefix: str, **options: str) -> Iterator[Any]:
        pages = self._client.get_paginator(call).paginate(
            Bucket=self._bucket, Prefix=prefix, PaginationConfig={"PageSize": _AT_ONCE}, **options
        )
        with _explained():
            yield from pages


def _condition(condition: str | None) -> dict[str, str]:
    if condition is None:
        return {}
    return {"IfNoneMatch": "*"} if condition == NEW else {"IfMatch": f'"{condition}"'}


def _compare(sent: str, reported: str | None) -> None:
    """Raise if a store reports another checksum than that of what was sent."""
    if reported is not None and ("-" in reported) == ("-" in sent) and reported != sent:
        raise PassingError(f"the store has SHA-256 {reported} of what was sent with {sent}")


def _etag(answer: Any) -> str:  # noqa: ANN401 - a dictionary of boto3
    """Give an etag without quotes: some stores leave them out of lists."""
    return str(answer["ETag"]).strip('"')


def _joined(parts: Sequence[Part]) -> str:
    """Give the checksum of an object in parts, as S3 computes it."""
    joined = hashlib.sha256(b"".join(part.sha256 for part in parts)).digest()
    return f"{_text(joined)}-{len(parts)}"


def _text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _ns(time: Any) -> int:  # noqa: ANN401 - a datetime
    return int(time.timestamp() * 1000) * 1_000_000


def _code(error: Exception) -> str:
    found = (getattr(error, "response", None) or {}).get("Error", {})
    return str(found.get("Code", ""))


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors of boto3 into ours."""
    try:
        yield
    except exceptions.ClientError as error:
        code, status = _code(error), error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
        message = error.response.get("Error", {}).get("Message") or code
        if code in _MISSING:
            raise FileNotFoundError(message) from error
        if code == "NoSuchUpload":
            raise NoUploadError(message) from error
        if code in ("PreconditionFailed", "412"):
            raise ConditionError(message) from error
        if code == "NotImplemented" or status == 501:
            raise UnsupportedError(f"{code}: {message}") from error
        if status >= 500 or status == 429 or code in _PASSING:
            raise PassingError(f"{status} {code}: {message}") from error
        raise RefusedError(f"{code}: {message}", _FIXES.get(code)) from error
    except exceptions.SSLError as error:
        fix = "set AWS_CA_BUNDLE, or check AWS_ENDPOINT_URL"
        raise RefusedError(without_secrets(str(error)), fix) from error
    except (
        exceptions.HTTPClientError,
        exceptions.ConnectionError,
        exceptions.IncompleteReadError,
    ) as error:
        raise PassingError(without_secrets(str(error))) from error
    except _NO_CREDENTIALS as error:
        fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        raise RefusedError(str(error), fix) from error
    except (exceptions.BotoCoreError, ValueError) as error:  # ValueError: a bad endpoint
        raise RefusedError(without_secrets(str(error))) from error
