"""What is said when a store refuses for good: which URL, why, and what to do; never a secret."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import boto3
import pytest

from shardwright.errors import StorageError, UsageError
from shardwright.storage import urls
from shardwright.storage.objects import without_secrets
from shardwright.storage.probe import require_conditions
from shardwright.storage.urls import Url
from tests.servers import (
    ACCOUNT_KEY,
    KEY,
    SECRET,
    new_bucket,
    new_container,
    running,
    use_azure,
    use_s3,
)
from tests.shards.webserver import serving

_CHECK = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile in ~/.aws"
_ALLOW = "allow it for these credentials (to list, read, write and delete), or use others"
_SET = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


def refused(act: Callable[[], object]) -> StorageError:
    with pytest.raises(StorageError) as caught:
        act()
    told = "".join(traceback.format_exception(caught.value))
    for secret in (SECRET, ACCOUNT_KEY, "x-amz-signature", "wrong-secret"):
        assert secret not in told
    return caught.value


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, moto: str) -> Iterator[tuple[str, Url, str]]:
    """A server that checks who asks: its URL, a bucket, and a key that may do nothing."""
    folder = tmp_path_factory.mktemp("strict")
    with running("moto", folder, INITIAL_NO_AUTH_ACTION_COUNT="3") as server:
        iam = boto3.client(
            "iam",
            endpoint_url=server,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )
        iam.create_user(UserName="nobody")
        key = iam.create_access_key(UserName="nobody")["AccessKey"]
        bucket = new_bucket(server)
        yield server, bucket, f"{key['AccessKeyId']} {key['SecretAccessKey']}"


@pytest.fixture(autouse=True)
def forget_clients() -> Iterator[None]:
    yield
    urls._store.cache_clear()


def test_a_key_that_nobody_has_is_refused(
    strict: tuple[str, Url, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bucket, _ = strict
    use_s3(monkeypatch, server)
    error = refused(lambda: require_conditions(bucket / "shards"))
    assert error.path == f"{bucket}/shards"
    assert error.what.startswith("cannot write to this folder (InvalidAccessKeyId: ")
    assert error.fix == _CHECK
    assert refused((bucket / "shards").names).fix == _CHECK
    assert refused((bucket / "file").read_bytes).fix == _CHECK


def test_a_wrong_secret_is_refused(
    strict: tuple[str, Url, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bucket, key = strict
    use_s3(monkeypatch, server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key.split()[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    error = refused((bucket / "shards").names)
    assert str(error).startswith(f"{bucket}/shards: SignatureDoesNotMatch: ")
    assert error.fix == _CHECK


def test_what_is_not_allowed_is_told_from_what_is_not_there(
    strict: tuple[str, Url, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bucket, key = strict
    use_s3(monkeypatch, server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key.split()[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key.split()[1])
    for act in ((bucket / "file").exists, (bucket / "file").read_bytes, bucket.names):
        error = refused(act)
        assert error.fix == _ALLOW
        assert error.path is not None
        assert error.path.startswith(str(bucket))


def test_missing_credentials_are_named(bucket: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert refused((bucket / "file").read_bytes).fix == _SET
    monkeypatch.setenv("AWS_PROFILE", "nothing")
    urls._store.cache_clear()
    error = refused((bucket / "file").read_bytes)
    assert str(error) == f"{bucket}: The config profile (nothing) could not be found; {_SET}"


def test_a_bucket_that_is_not_there_is_named(bucket: Url) -> None:
    error = refused(Url("s3://no-such-bucket/shards").names)
    assert str(error).startswith("s3://no-such-bucket/shards: NoSuchBucket: ")
    assert error.fix == "make the bucket first, or check its name"


def test_an_endpoint_that_makes_no_sense_is_named(
    bucket: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    urls._store.cache_clear()
    assert str(refused((bucket / "file").exists)) == f"{bucket}: Invalid endpoint: nonsense"


def test_a_server_that_ignores_ranges_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/0.tar").write_bytes(b"0123456789")
    file = Url("s3://bucket/0.tar")
    with serving(tmp_path) as server:
        use_s3(monkeypatch, server.url)
        assert file.read_range(2, 3) == b"234"
        server.manner = "whole"
        assert file.read_range(0, 10) == b"0123456789"
        assert file.read_range(0, 11) == b"0123456789"
        for start, size in ((0, 9), (2, 8), (2, None), (2, 100)):
            assert str(refused(partial(file.read_range, start, size))) == (
                f"{file}: this server ignores ranges, and sends complete files; "
                "use another server, or copy the files to one"
            )


def test_azure_refusals_have_a_fix(azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fix = "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or allow it"
    use_azure(monkeypatch, azurite)
    container = new_container(azurite)
    assert str(refused(Url("az://nothing/a").names)) == (
        "az://nothing/a: there is no az://nothing; make it first, or check its name"
    )
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "AAAA" + ACCOUNT_KEY[4:])
    urls._store.cache_clear()
    for act in (container.names, (container / "a").exists, (container / "a").read_bytes):
        assert refused(act).fix == fix
    assert refused(lambda: require_conditions(container / "shards")).fix == fix


def test_passwords_and_signatures_are_left_out() -> None:
    message = 'PUT "https://user:password@host/key?sig=abc&se=1" failed; see http://a/b?c.'
    assert without_secrets(message) == 'PUT "https://host/key" failed; see http://a/b'
    assert without_secrets("http://user:p@ss@host/a@b") == "http://host/a@b"


@pytest.mark.parametrize("text", ["s3://", "s3:///key", "ftp://host/a", "https://host/a"])
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a URL that can be used here; give s3://BUCKET/"):
        Url(text)
